(* SPDX-License-Identifier: Apache-2.0 *)
(** The halting distribution of a site: the sequential parameterisation, its floor, the ramp it starts from,
    and the negative-binomial prior that pulls it down.

    Main theorems: [mass_sums_to_one], [mass_nonneg], [mass_last_is_complement], [mass_log],
    [floor_mass_sums_to_one], [floor_mass_nonneg], [floor_mass_zero_below], [expected_error], [ramp_ratio],
    [ramp_ends_equal], [ramp_monotone], [ramp_monotone_iff], [default_slope], [prior_mode], [geometric_law],
    [geometric_mode]. *)

From Coq Require Import Reals Lra Lia Psatz Arith.
From Heat Require Import Sums.
Open Scope R_scope.

(** * Definitions *)

Definition sigmoid (l : R) : R := / (1 + exp (- l)).

(** The probability of reaching count [i] when [h j] is the probability of stopping at [j] once there. *)
Fixpoint survive (h : nat -> R) (i : nat) : R :=
  match i with
  | O => 1
  | S j => survive h j * (1 - h j)
  end.

(** The mass at count [i] of a site with largest count [n]; the last atom absorbs what is left. *)
Definition mass (h : nat -> R) (n i : nat) : R :=
  if i <? n then h i * survive h i else if i =? n then survive h n else 0.

(** With a floor [m] the logits below it do not exist: the support is m .. n. *)
Definition floor_mass (h : nat -> R) (m n i : nat) : R :=
  if i <? m then 0 else mass (fun j => h (m + j)%nat) (n - m) (i - m).

(** The initial logits: a ramp of slope [gamma] that reaches 0 one step below the largest count. *)
Definition ramp (gamma : R) (n i : nat) : R := gamma * (INR i - (INR n - 1)).
Definition ramp_mass (gamma : R) (m n i : nat) : R := floor_mass (fun j => sigmoid (ramp gamma n j)) m n i.

(** The negative-binomial law of parameter [p] and shape [r], by its ratio; [c] > 0 is its value at 0, hence any
    normalisation. [prior_shape] puts the mode at [w]; a geometric law has shape 1. *)
Fixpoint prior (c p r : R) (k : nat) : R :=
  match k with
  | O => c
  | S j => prior c p r j * ((1 - p) * (INR j + r) / (INR j + 1))
  end.
Definition prior_shape (p : R) (w : nat) : R := 1 + (INR w + 1 / 2) * p / (1 - p).

(** * The sequential parameterisation *)

Lemma mass_below (h : nat -> R) (n i : nat) : (i < n)%nat -> mass h n i = h i * survive h i.
Proof. intros H. unfold mass. now rewrite (proj2 (Nat.ltb_lt i n) H). Qed.

Lemma mass_last (h : nat -> R) (n : nat) : mass h n n = survive h n.
Proof. unfold mass. now rewrite Nat.ltb_irrefl, Nat.eqb_refl. Qed.

Lemma stopped_or_reached (h : nat -> R) (n : nat) : total n (fun i => h i * survive h i) + survive h n = 1.
Proof. induction n as [|n IH]; cbn; [ring | lra]. Qed.

Theorem mass_sums_to_one (h : nat -> R) (n : nat) : total (S n) (mass h n) = 1.
Proof.
  cbn [total]. rewrite mass_last, (total_ext n (mass h n) (fun i => h i * survive h i)).
  - apply stopped_or_reached.
  - apply mass_below.
Qed.

Lemma survive_nonneg (h : nat -> R) (n : nat) : (forall j, 0 <= h j <= 1) -> 0 <= survive h n.
Proof. intros H. induction n as [|n IH]; cbn; [lra|]. specialize (H n). apply Rmult_le_pos; lra. Qed.

Theorem mass_nonneg (h : nat -> R) (n i : nat) : (forall j, 0 <= h j <= 1) -> 0 <= mass h n i.
Proof.
  intros H. unfold mass. destruct (i <? n); [|destruct (i =? n)]; [| |lra]; try now apply survive_nonneg.
  apply Rmult_le_pos; [apply H | now apply survive_nonneg].
Qed.

(** The last atom is the complement of the others, as the code reads it off. *)
Theorem mass_last_is_complement (h : nat -> R) (n : nat) : mass h n n = 1 - total n (mass h n).
Proof. pose proof (mass_sums_to_one h n) as H. cbn [total] in H. lra. Qed.

Lemma sigmoid_range (l : R) : 0 < sigmoid l < 1.
Proof.
  pose proof (exp_pos (- l)). unfold sigmoid. split; [apply Rinv_0_lt_compat; lra|].
  rewrite <- Rinv_1 at 2. apply Rinv_lt_contravar; lra.
Qed.

Lemma sigmoid_opp (l : R) : 1 - sigmoid l = sigmoid (- l).
Proof.
  unfold sigmoid. rewrite Ropp_involutive, exp_Ropp. pose proof (exp_pos l). field. lra.
Qed.

(** In log space: log p_i = log sigma(l_i) + sum_{j<i} log sigma(-l_j). *)
Theorem mass_log (l : nat -> R) (n i : nat) : (i < n)%nat ->
  ln (mass (fun j => sigmoid (l j)) n i) = ln (sigmoid (l i)) + total i (fun j => ln (sigmoid (- l j))).
Proof.
  intros H. rewrite mass_below by exact H.
  assert (S : 0 < survive (fun j => sigmoid (l j)) i
              /\ ln (survive (fun j => sigmoid (l j)) i) = total i (fun j => ln (sigmoid (- l j)))).
  { clear H. induction i as [|i [IHp IHl]]; cbn [survive total]; [split; [lra | apply ln_1]|].
    rewrite sigmoid_opp. pose proof (sigmoid_range (- l i)). split; [apply Rmult_lt_0_compat; lra|].
    rewrite ln_mult, IHl by lra. reflexivity. }
  destruct S as [Sp Sl]. rewrite ln_mult, Sl; [reflexivity | apply sigmoid_range | exact Sp].
Qed.

(** * With a floor *)

Theorem floor_mass_zero_below (h : nat -> R) (m n i : nat) : (i < m)%nat -> floor_mass h m n i = 0.
Proof. intros H. unfold floor_mass. now rewrite (proj2 (Nat.ltb_lt i m) H). Qed.

Lemma floor_mass_above (h : nat -> R) (m n i : nat) :
  floor_mass h m n (m + i) = mass (fun j => h (m + j)%nat) (n - m) i.
Proof.
  unfold floor_mass. replace (m + i <? m) with false by (symmetry; apply Nat.ltb_ge; lia).
  f_equal. lia.
Qed.

Theorem floor_mass_nonneg (h : nat -> R) (m n i : nat) : (forall j, 0 <= h j <= 1) -> 0 <= floor_mass h m n i.
Proof. intros H. unfold floor_mass. destruct (i <? m); [lra|]. apply mass_nonneg. intros j. apply H. Qed.

Theorem floor_mass_sums_to_one (h : nat -> R) (m n : nat) : (m <= n)%nat -> total (S n) (floor_mass h m n) = 1.
Proof.
  intros H. rewrite <- (mass_sums_to_one (fun j => h (m + j)%nat) (n - m)).
  replace (S n) with (m + S (n - m))%nat by lia. generalize (S (n - m)) as k. intros k.
  induction k as [|k IH]; cbn [total].
  - rewrite Nat.add_0_r, (total_ext m _ (fun _ => 0)), total_const by apply floor_mass_zero_below. ring.
  - rewrite Nat.add_succ_r. cbn [total]. rewrite IH, floor_mass_above. reflexivity.
Qed.

(** * The expected approximation *)

(** Mixing the states F_0 .. F_n of a solver by a distribution errs by at most the mean of their errors. *)
Theorem expected_error (n : nat) (p F e : nat -> R) (f : R) :
  (forall i, (i <= n)%nat -> 0 <= p i) -> total (S n) p = 1 -> (forall i, (i <= n)%nat -> Rabs (F i - f) <= e i) ->
  Rabs (total (S n) (fun i => p i * F i) - f) <= total (S n) (fun i => p i * e i).
Proof.
  intros Hp H1 HF.
  replace (total (S n) (fun i => p i * F i) - f) with (total (S n) (fun i => p i * (F i - f))).
  - eapply Rle_trans; [apply total_abs|]. apply total_le. intros i Hi. specialize (Hp i ltac:(lia)).
    rewrite Rabs_mult, (Rabs_pos_eq (p i)) by exact Hp. apply Rmult_le_compat_l; [exact Hp | apply HF; lia].
  - rewrite (total_ext (S n) _ (fun i => p i * F i + - f * p i)) by (intros; ring).
    rewrite total_plus, total_scale, H1. ring.
Qed.

(** * The ramp *)

Lemma ramp_succ (gamma : R) (n i : nat) : ramp gamma n (S i) = ramp gamma n i + gamma.
Proof. unfold ramp. rewrite S_INR. ring. Qed.

(** Neighbouring masses: p_{i+1} / p_i = e^gamma / (1 + e^{l_{i+1}}), wherever both come from logits. *)
Theorem ramp_ratio (gamma : R) (m n i : nat) : (m <= i)%nat -> (S i < n)%nat ->
  ramp_mass gamma m n (S i) = ramp_mass gamma m n i * (exp gamma / (1 + exp (ramp gamma n (S i)))).
Proof.
  intros Hm Hn. unfold ramp_mass. replace i with (m + (i - m))%nat by lia. set (k := (i - m)%nat).
  rewrite <- Nat.add_succ_r, !floor_mass_above, !mass_below by lia.
  cbn [survive]. rewrite Nat.add_succ_r, ramp_succ, sigmoid_opp.
  set (l := ramp gamma n (m + k)). set (s := survive _ k).
  unfold sigmoid. rewrite !Ropp_involutive, !exp_Ropp, exp_plus.
  pose proof (exp_pos l). pose proof (exp_pos gamma). field. repeat split; try lra.
  assert (0 < exp l * exp gamma) by (apply Rmult_lt_0_compat; lra). lra.
Qed.

(** The two deepest counts start with equal mass. *)
Theorem ramp_ends_equal (gamma : R) (m n : nat) : (m < n)%nat -> ramp_mass gamma m n (n - 1) = ramp_mass gamma m n n.
Proof.
  intros H. unfold ramp_mass.
  replace (n - 1)%nat with (m + (n - 1 - m))%nat by lia. replace n with (m + (n - m))%nat at 4 by lia.
  rewrite !floor_mass_above, mass_below by lia. replace (n - m)%nat with (S (n - 1 - m)) by lia.
  rewrite mass_last. cbn [survive]. replace (m + (n - 1 - m))%nat with (n - 1)%nat by lia.
  replace (ramp gamma n (n - 1)) with 0 by (unfold ramp; rewrite minus_INR by lia; cbn; ring).
  unfold sigmoid. rewrite Ropp_0, exp_0. field.
Qed.

Lemma ramp_mass_pos (gamma : R) (m n i : nat) : (m <= i < n)%nat -> 0 < ramp_mass gamma m n i.
Proof.
  intros H. unfold ramp_mass. replace i with (m + (i - m))%nat by lia.
  rewrite floor_mass_above, mass_below by lia. apply Rmult_lt_0_compat; [apply sigmoid_range|].
  generalize (i - m)%nat as k. induction k as [|k IH]; cbn [survive]; [lra|].
  apply Rmult_lt_0_compat; [exact IH|]. pose proof (sigmoid_range (ramp gamma n (m + k))). lra.
Qed.

Lemma exp_ln2_le (gamma : R) : ln 2 <= gamma <-> 2 <= exp gamma.
Proof.
  split; intros H.
  - rewrite <- (exp_ln 2) by lra. destruct H as [H| <-]; [left; now apply exp_increasing | lra].
  - rewrite <- (ln_exp gamma). destruct H as [H|H]; [left; apply ln_increasing; lra | right; now rewrite <- H].
Qed.

(** From gamma >= ln 2 on, the initial masses never decrease. *)
Theorem ramp_monotone (gamma : R) (m n i : nat) : ln 2 <= gamma -> (m <= i < n)%nat ->
  ramp_mass gamma m n i <= ramp_mass gamma m n (S i).
Proof.
  intros Hg Hi. destruct (Nat.eq_dec (S i) n) as [E|E].
  - right. subst n. rewrite <- (ramp_ends_equal gamma m (S i)) by lia. f_equal. lia.
  - rewrite ramp_ratio by lia. pose proof (ramp_mass_pos gamma m n i Hi) as Hp.
    apply exp_ln2_le in Hg. pose proof (exp_pos (ramp gamma n (S i))).
    assert (exp (ramp gamma n (S i)) <= 1).
    { rewrite <- exp_0. assert (L : ramp gamma n (S i) <= 0).
      { assert (0 <= gamma).
        { destruct (Rle_lt_dec 0 gamma) as [|Hneg]; [assumption|]. apply exp_increasing in Hneg.
          rewrite exp_0 in Hneg. lra. }
        assert (INR (S i) <= INR n - 1).
        { change 1 with (INR 1). rewrite <- minus_INR by lia. apply le_INR. lia. }
        unfold ramp. nra. }
      destruct L as [L| ->]; [left; now apply exp_increasing | lra]. }
    rewrite <- (Rmult_1_r (ramp_mass gamma m n i)) at 1. apply Rmult_le_compat_l; [lra|].
    apply Rmult_le_reg_r with (1 + exp (ramp gamma n (S i))); [lra|].
    unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. lra.
Qed.

(** The slope cannot be smaller as soon as three counts are in the support. *)
Theorem ramp_monotone_iff (gamma : R) (m n : nat) : (m + 2 <= n)%nat ->
  (forall i, (m <= i < n)%nat -> ramp_mass gamma m n i <= ramp_mass gamma m n (S i)) <-> ln 2 <= gamma.
Proof.
  intros Hn. split; [|intros H i Hi; now apply ramp_monotone].
  intros H. apply exp_ln2_le. specialize (H (n - 2)%nat ltac:(lia)).
  rewrite ramp_ratio in H by lia. pose proof (ramp_mass_pos gamma m n (n - 2) ltac:(lia)) as Hp.
  replace (ramp gamma n (S (n - 2))) with 0 in H.
  - rewrite exp_0 in H. apply Rmult_le_reg_l with (ramp_mass gamma m n (n - 2)); [exact Hp|]. lra.
  - unfold ramp. replace (S (n - 2)) with (n - 1)%nat by lia. rewrite minus_INR by lia. cbn. ring.
Qed.

(** The slope in use is steep enough: 0.7 >= ln 2, from e^(0.7/64) >= 1 + 0.7/64 squared six times. *)
Theorem default_slope : ln 2 <= 7 / 10.
Proof.
  apply exp_ln2_le.
  assert (Sq : forall x y a, x = 2 * y -> 0 <= a -> a <= exp y -> a ^ 2 <= exp x).
  { intros x y a -> Ha H. replace (2 * y) with (y + y) by ring. rewrite exp_plus. nra. }
  assert (E0 : 647 / 640 <= exp (7 / 640)) by (eapply Rle_trans; [|apply Rlt_le, exp_ineq1]; lra).
  assert (E6 : ((((((647 / 640) ^ 2) ^ 2) ^ 2) ^ 2) ^ 2) ^ 2 <= exp (7 / 10)).
  { apply Sq with (7 / 20); [lra | apply pow2_ge_0|]. apply Sq with (7 / 40); [lra | apply pow2_ge_0|].
    apply Sq with (7 / 80); [lra | apply pow2_ge_0|]. apply Sq with (7 / 160); [lra | apply pow2_ge_0|].
    apply Sq with (7 / 320); [lra | apply pow2_ge_0|]. apply Sq with (7 / 640); lra. }
  lra.
Qed.

(** * The prior *)

Lemma prior_pos (c p r : R) (k : nat) : 0 < c -> 0 < p < 1 -> 0 < r -> 0 < prior c p r k.
Proof.
  intros Hc Hp Hr. induction k as [|k IH]; [exact Hc|]. cbn [prior]. pose proof (pos_INR k).
  apply Rmult_lt_0_compat; [exact IH|]. unfold Rdiv.
  repeat apply Rmult_lt_0_compat; try lra. apply Rinv_0_lt_compat. lra.
Qed.

(** A positive sequence that rises up to [w] and falls after it peaks at [w] alone. *)
Lemma peak (f : nat -> R) (w : nat) :
  (forall k, (k < w)%nat -> f k < f (S k)) -> (forall k, (w <= k)%nat -> f (S k) < f k) ->
  forall k, k <> w -> f k < f w.
Proof.
  intros Up Down k Hk. destruct (Nat.lt_ge_cases k w) as [H|H].
  - assert (G : forall j, (k + S j <= w)%nat -> f k < f (k + S j)%nat).
    { induction j as [|j IH]; intros Hj.
      - rewrite Nat.add_1_r. apply Up. lia.
      - rewrite Nat.add_succ_r. eapply Rlt_trans; [apply IH; lia | apply Up; lia]. }
    replace w with (k + S (w - k - 1))%nat by lia. apply G. lia.
  - assert (G : forall j, f (w + S j)%nat < f w).
    { induction j as [|j IH].
      - rewrite Nat.add_1_r. apply Down. lia.
      - rewrite Nat.add_succ_r. eapply Rlt_trans; [apply Down; lia | exact IH]. }
    replace k with (w + S (k - w - 1))%nat by lia. apply G.
Qed.

(** The ratio P(k+1)/P(k) exceeds 1 exactly below w. *)
Lemma prior_ratio (p : R) (w k : nat) : 0 < p < 1 ->
  (1 - p) * (INR k + prior_shape p w) / (INR k + 1) - 1 = p * (INR w - 1 / 2 - INR k) / (INR k + 1).
Proof. intros Hp. pose proof (pos_INR k). unfold prior_shape. field. lra. Qed.

(** The prior's mode is exactly w, without a tie, on every support that holds w. *)
Theorem prior_mode (c p : R) (w k : nat) : 0 < c -> 0 < p < 1 -> k <> w ->
  prior c p (prior_shape p w) k < prior c p (prior_shape p w) w.
Proof.
  intros Hc Hp. assert (Hr : 0 < prior_shape p w).
  { pose proof (pos_INR w). unfold prior_shape.
    assert (0 <= (INR w + 1 / 2) * p / (1 - p)) by (repeat apply Rmult_le_pos; try apply Rlt_le, Rinv_0_lt_compat; lra).
    lra. }
  revert k. apply peak; intros k Hk; cbn [prior];
    pose proof (prior_pos c p (prior_shape p w) k Hc Hp Hr) as HP;
    pose proof (prior_ratio p w k Hp) as Hq; pose proof (pos_INR k);
    set (q := (1 - p) * (INR k + prior_shape p w) / (INR k + 1)) in *.
  - assert (0 < q - 1); [|nra]. rewrite Hq.
    assert (INR k + 1 <= INR w) by (rewrite <- S_INR; apply le_INR; lia).
    repeat apply Rmult_lt_0_compat; try apply Rinv_0_lt_compat; lra.
  - assert (q - 1 < 0); [|nra]. rewrite Hq.
    assert (INR w <= INR k) by (apply le_INR; lia).
    replace (p * (INR w - 1 / 2 - INR k) / (INR k + 1)) with (- (p * (INR k + 1 / 2 - INR w) / (INR k + 1)))
      by (field; lra).
    assert (0 < p * (INR k + 1 / 2 - INR w) / (INR k + 1)); [|lra].
    repeat apply Rmult_lt_0_compat; try apply Rinv_0_lt_compat; lra.
Qed.

(** At w = 0 the code may take the geometric law, shape 1: P(k) = P(0) (1-p)^k ... *)
Theorem geometric_law (c p : R) (k : nat) : prior c p 1 k = c * (1 - p) ^ k.
Proof. induction k as [|k IH]; cbn [prior pow]; [ring|]. rewrite IH. pose proof (pos_INR k). field. lra. Qed.

(** ... whose mode is 0 too. *)
Theorem geometric_mode (c p : R) (k : nat) : 0 < c -> 0 < p < 1 -> k <> 0%nat -> prior c p 1 k < prior c p 1 0.
Proof.
  intros Hc Hp Hk. rewrite geometric_law. destruct k as [|k]; [easy|]. cbn [prior pow].
  assert (0 <= (1 - p) ^ k <= 1).
  { split; [apply pow_le; lra|]. rewrite <- (pow1 k) at 2. apply pow_incr. lra. }
  assert ((1 - p) * (1 - p) ^ k < 1) by nra. nra.
Qed.
