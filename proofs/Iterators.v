(* SPDX-License-Identifier: Apache-2.0 *)
(** Quadratically convergent solvers: the error budget, Goldschmidt's reciprocal with its
    minimax seed, the relaxed reciprocal with its scaled schedule, Newton's inverse square root.

    Main theorems: [budget_positive], [budget_decreasing], [budget_vanishes],
    [goldschmidt_error_squares], [goldschmidt_one_sided], [goldschmidt_bound], [goldschmidt_within_budget],
    [goldschmidt_quotient], [seed_error_bound], [seed_error_attained], [seed_is_minimax], [seed_error_chebyshev],
    [seed_basin], [seed_outside_basin], [relaxed_step_error], [relaxed_bound], [relaxed_no_worse],
    [relaxed_interval_ratio], [relaxed_error_chebyshev], [schedule_range], [scaled_schedule],
    [newton_error], [newton_bound], [newton_basin], [newton_outside_basin]. *)

From Coq Require Import Reals Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
Open Scope R_scope.

(** * Definitions *)

(** The error budget of an iterator after [n] steps: M r^(2^n). *)
Definition budget (M r : R) (n : nat) : R := M * r ^ (2 ^ n).

(** Goldschmidt (or Newton-Raphson) for 1/d from the estimate [y0]: y' = y (2 - d y). *)
Fixpoint goldschmidt (d y0 : R) (n : nat) : R :=
  match n with
  | O => y0
  | S m => let y := goldschmidt d y0 m in y * (2 - d * y)
  end.

(** The same in numerator/denominator form, as a circuit runs it: F = 2 - D, (N, D)' = (N F, D F). *)
Fixpoint quotient (N0 D0 : R) (n : nat) : R * R :=
  match n with
  | O => (N0, D0)
  | S m => let (N, D) := quotient N0 D0 m in (N * (2 - D), D * (2 - D))
  end.

(** The linear seed on [a, b] and its worst relative error. *)
Definition seed_scale (a b : R) : R := a ^ 2 + 6 * a * b + b ^ 2.
Definition seed (a b d : R) : R := 8 * (a + b - d) / seed_scale a b.
Definition seed_error (a b : R) : R := (b - a) ^ 2 / seed_scale a b.

(** The relaxed variant re-centres each step on 1: gain k(e), error e'(e). *)
Definition relaxed_gain (e : R) : R := 2 / (2 - e ^ 2).
Definition relaxed_next (e : R) : R := e ^ 2 / (2 - e ^ 2).

Fixpoint relaxed_error (e0 : R) (n : nat) : R :=
  match n with
  | O => e0
  | S m => relaxed_next (relaxed_error e0 m)
  end.

Fixpoint relaxed (d y0 e0 : R) (n : nat) : R :=
  match n with
  | O => y0
  | S m => let y := relaxed d y0 e0 m in relaxed_gain (relaxed_error e0 m) * y * (2 - d * y)
  end.

(** The relaxed variant without a product by k: N and D carry the factor s_i, and F = 2 s_i - D. *)
Fixpoint scaled (s : nat -> R) (N0 D0 : R) (n : nat) : R * R :=
  match n with
  | O => (N0, D0)
  | S m => let (N, D) := scaled s N0 D0 m in (N * (2 * s m - D), D * (2 * s m - D))
  end.

(** A schedule for [count] steps: s_count = 1 and s_i = sqrt (k_i s_{i+1}). *)
Definition is_schedule (e0 : R) (count : nat) (s : nat -> R) : Prop :=
  s count = 1 /\ forall i, (i < count)%nat -> s i = sqrt (relaxed_gain (relaxed_error e0 i) * s (S i)).

(** Newton for gain/sqrt z: y' = y (3 - z (y/gain)^2) / 2, and its relative error 1 - y sqrt z / gain. *)
Definition newton_step (gain z y : R) : R := y * (3 - z * (y / gain) ^ 2) / 2.
Definition root_error (gain z y : R) : R := 1 - y * sqrt z / gain.

Fixpoint newton (gain z y0 : R) (n : nat) : R :=
  match n with
  | O => y0
  | S m => newton_step gain z (newton gain z y0 m)
  end.

(** * The budget *)

Lemma two_pow_pos (n : nat) : (0 < 2 ^ n)%nat.
Proof. induction n; cbn; lia. Qed.

Lemma pow_double (x : R) (n : nat) : x ^ (2 ^ S n) = (x ^ (2 ^ n)) ^ 2.
Proof. replace (2 ^ S n)%nat with (2 ^ n * 2)%nat by (cbn; lia). apply pow_mult. Qed.

Lemma budget_squares (M r : R) (n : nat) : M * budget M r (S n) = budget M r n ^ 2.
Proof. unfold budget. rewrite pow_double. ring. Qed.

Theorem budget_positive (M r : R) (n : nat) : 0 < M -> 0 < r -> 0 < budget M r n.
Proof. intros HM Hr. apply Rmult_lt_0_compat; [assumption | now apply pow_lt]. Qed.

Theorem budget_decreasing (M r : R) (n : nat) :
  0 < M -> 0 < r < 1 -> budget M r (S n) < budget M r n.
Proof.
  intros HM Hr. unfold budget. apply Rmult_lt_compat_l; [assumption|]. rewrite pow_double.
  assert (0 < r ^ (2 ^ n)) by (apply pow_lt; lra).
  assert (r ^ (2 ^ n) < 1) by (apply pow_lt_1_compat; [lra | apply two_pow_pos]). nra.
Qed.

Lemma pow_small (x : R) (i j : nat) : 0 <= x <= 1 -> (i <= j)%nat -> x ^ j <= x ^ i.
Proof.
  intros Hx Hij. replace j with (i + (j - i))%nat by lia. rewrite pow_add.
  assert (0 <= x ^ i) by (apply pow_le; lra).
  assert (x ^ (j - i) <= 1) by (rewrite <- (pow1 (j - i)); apply pow_incr; lra). nra.
Qed.

Lemma square_powers_vanish (x : R) : 0 <= x < 1 -> is_lim_seq (fun n => x ^ (2 ^ n)) 0.
Proof.
  intros Hx. apply is_lim_seq_le_le with (u := fun _ => 0) (w := fun n => x ^ n).
  - intros n. split; [apply pow_le; lra | apply pow_small; [lra|]].
    apply PeanoNat.Nat.lt_le_incl, PeanoNat.Nat.pow_gt_lin_r; lia.
  - apply is_lim_seq_const.
  - apply is_lim_seq_geom. rewrite Rabs_pos_eq; lra.
Qed.

Theorem budget_vanishes (M r : R) : 0 < r < 1 -> is_lim_seq (budget M r) 0.
Proof.
  intros Hr. replace (Finite 0) with (Rbar_mult M 0) by (cbn; f_equal; ring).
  apply is_lim_seq_scal_l, square_powers_vanish. lra.
Qed.

(** * Goldschmidt's reciprocal *)

(** One step squares the error; n steps raise it to 2^n. *)
Theorem goldschmidt_error_squares (d y0 : R) (n : nat) :
  1 - d * goldschmidt d y0 n = (1 - d * y0) ^ (2 ^ n).
Proof.
  induction n as [|n IH]; [cbn; ring|].
  rewrite pow_double, <- IH. cbn [goldschmidt]. ring.
Qed.

(** After one step d y never exceeds 1. *)
Theorem goldschmidt_one_sided (d y0 : R) (n : nat) : d * goldschmidt d y0 (S n) <= 1.
Proof.
  pose proof (goldschmidt_error_squares d y0 (S n)) as E. rewrite pow_double in E.
  pose proof (pow2_ge_0 ((1 - d * y0) ^ (2 ^ n))). lra.
Qed.

Theorem goldschmidt_bound (d y0 e0 : R) (n : nat) :
  0 < d -> Rabs (1 - d * y0) <= e0 -> Rabs (goldschmidt d y0 n - 1 / d) <= e0 ^ (2 ^ n) / d.
Proof.
  intros Hd He.
  replace (goldschmidt d y0 n - 1 / d) with (- (1 - d * goldschmidt d y0 n) / d) by (field; lra).
  rewrite goldschmidt_error_squares. unfold Rdiv.
  rewrite Rabs_mult, Rabs_Ropp, <- RPow_abs, (Rabs_pos_eq (/ d)) by (apply Rlt_le, Rinv_0_lt_compat, Hd).
  apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat, Hd|].
  apply pow_incr. split; [apply Rabs_pos | exact He].
Qed.

(** On a domain [d >= a] the iterator meets the budget with M = 1/a, r = e0. *)
Theorem goldschmidt_within_budget (a d y0 e0 : R) (n : nat) :
  0 < a <= d -> Rabs (1 - d * y0) <= e0 -> Rabs (goldschmidt d y0 n - 1 / d) <= budget (1 / a) e0 n.
Proof.
  intros Hd He. eapply Rle_trans; [apply goldschmidt_bound; [lra | exact He]|].
  unfold budget. rewrite Rmult_comm. apply Rmult_le_compat_l.
  - apply pow_le. eapply Rle_trans; [apply Rabs_pos | exact He].
  - unfold Rdiv. rewrite Rmult_1_l. apply Rinv_le_contravar; lra.
Qed.

(** The circuit's (N, D) pair is (num y_n, d y_n). *)
Theorem goldschmidt_quotient (num d y0 : R) (n : nat) :
  quotient (num * y0) (d * y0) n = (num * goldschmidt d y0 n, d * goldschmidt d y0 n).
Proof. induction n as [|n IH]; [reflexivity|]. cbn. rewrite IH. f_equal; ring. Qed.

(** * The minimax linear seed *)

Lemma seed_scale_pos (a b : R) : 0 < a < b -> 0 < seed_scale a b.
Proof. intros H. unfold seed_scale. nra. Qed.

Lemma seed_error_range (a b : R) : 0 < a < b -> 0 < seed_error a b < 1.
Proof.
  intros H. pose proof (seed_scale_pos a b H) as HQ. unfold seed_error. split.
  - apply Rdiv_lt_0_compat; [nra | exact HQ].
  - apply Rlt_div_l; [exact HQ|]. unfold seed_scale. nra.
Qed.

Theorem seed_error_bound (a b d : R) :
  0 < a < b -> a <= d <= b -> Rabs (1 - d * seed a b d) <= seed_error a b.
Proof.
  intros H Hd. pose proof (seed_scale_pos a b H) as HQ. unfold seed, seed_error.
  replace (1 - d * (8 * (a + b - d) / seed_scale a b))
    with ((seed_scale a b - 8 * d * (a + b - d)) / seed_scale a b) by (field; lra).
  unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ _)) by (apply Rlt_le, Rinv_0_lt_compat, HQ).
  apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat, HQ|].
  apply Rabs_le. unfold seed_scale. split; [|nra].
  assert (0 <= (2 * d - a - b) ^ 2) by apply pow2_ge_0. nra.
Qed.

(** The error reaches its bound, with alternating signs, at both ends and in the middle. *)
Theorem seed_error_attained (a b : R) : 0 < a < b ->
  1 - a * seed a b a = seed_error a b
  /\ 1 - (a + b) / 2 * seed a b ((a + b) / 2) = - seed_error a b
  /\ 1 - b * seed a b b = seed_error a b.
Proof.
  intros H. pose proof (seed_scale_pos a b H) as HQ. unfold seed, seed_error, seed_scale in *.
  repeat split; field; lra.
Qed.

(** No other linear seed [alpha - beta d] does better on the whole interval. *)
Theorem seed_is_minimax (a b alpha beta : R) : 0 < a < b ->
  exists d, a <= d <= b /\ seed_error a b <= Rabs (1 - d * (alpha - beta * d)).
Proof.
  intros H. pose proof (seed_scale_pos a b H) as HQ. pose (m := (a + b) / 2).
  set (q := fun d => 1 - d * (alpha - beta * d)).
  destruct (Rle_lt_dec (seed_error a b) (Rabs (q a))) as [?|Ha]; [exists a; split; [lra | assumption]|].
  destruct (Rle_lt_dec (seed_error a b) (Rabs (q m))) as [?|Hm]; [exists m; split; [unfold m; lra | assumption]|].
  destruct (Rle_lt_dec (seed_error a b) (Rabs (q b))) as [?|Hb]; [exists b; split; [lra | assumption]|].
  exfalso. apply Rabs_def2 in Ha, Hm, Hb.
  (* interpolation at a, m, b, evaluated at 0, where every such q is 1 *)
  assert (E : (b - a) ^ 2 = b * (a + b) * q a - 4 * a * b * q m + a * (a + b) * q b)
    by (unfold q, m; field).
  assert (S : (b - a) ^ 2 = (b * (a + b) + 4 * a * b + a * (a + b)) * seed_error a b)
    by (unfold seed_error, seed_scale in *; field; lra).
  assert (0 < b * (a + b)) by nra. assert (0 < 4 * a * b) by nra. assert (0 < a * (a + b)) by nra.
  nra.
Qed.

(** Its error is 1 / T_2 (x) at x = (b+a)/(b-a), with T_2 (x) = 2 x^2 - 1. *)
Theorem seed_error_chebyshev (a b : R) : 0 < a < b -> / seed_error a b = 2 * ((b + a) / (b - a)) ^ 2 - 1.
Proof. intros H. pose proof (seed_scale_pos a b H). unfold seed_error, seed_scale in *. field. nra. Qed.

(** From this seed the iteration converges on all of (0, a+b) ... *)
Theorem seed_basin (a b d : R) : 0 < a < b -> 0 < d < a + b -> Rabs (1 - d * seed a b d) < 1.
Proof.
  intros H Hd. pose proof (seed_scale_pos a b H) as HQ. unfold seed.
  assert (0 < d * (8 * (a + b - d) / seed_scale a b)).
  { apply Rmult_lt_0_compat; [lra | apply Rdiv_lt_0_compat; lra]. }
  assert (d * (8 * (a + b - d) / seed_scale a b) < 2).
  { replace (d * (8 * (a + b - d) / seed_scale a b)) with (8 * d * (a + b - d) / seed_scale a b) by (field; lra).
    apply Rlt_div_l; [exact HQ|]. unfold seed_scale. assert (0 <= (2 * d - a - b) ^ 2) by apply pow2_ge_0. nra. }
  apply Rabs_lt_between. lra.
Qed.

(** ... and above a+b it diverges: the error exceeds 1, and is squared. *)
Theorem seed_outside_basin (a b d : R) : 0 < a < b -> a + b < d -> 1 < 1 - d * seed a b d.
Proof.
  intros H Hd. pose proof (seed_scale_pos a b H) as HQ. unfold seed.
  assert (0 < d * (8 * (d - a - b) / seed_scale a b)).
  { apply Rmult_lt_0_compat; [lra | apply Rdiv_lt_0_compat; lra]. }
  replace (d * (8 * (a + b - d) / seed_scale a b)) with (- (d * (8 * (d - a - b) / seed_scale a b))) by (field; lra).
  lra.
Qed.

(** * The relaxed reciprocal *)

Lemma relaxed_next_range (e : R) : 0 <= e < 1 -> 0 <= relaxed_next e < 1.
Proof.
  intros He. assert (0 <= e ^ 2 < 1) by (split; nra). unfold relaxed_next. split.
  - apply Rdiv_le_0_compat; lra.
  - apply Rlt_div_l; lra.
Qed.

Lemma relaxed_error_range (e0 : R) (n : nat) : 0 <= e0 < 1 -> 0 <= relaxed_error e0 n < 1.
Proof. intros He. induction n as [|n IH]; [exact He | now apply relaxed_next_range]. Qed.

(** [1-e, 1+e] goes into [1-e', 1+e'] with e' = e^2 / (2 - e^2). *)
Theorem relaxed_step_error (e D : R) : 0 <= e < 1 -> Rabs (1 - D) <= e ->
  Rabs (1 - relaxed_gain e * D * (2 - D)) <= relaxed_next e.
Proof.
  intros He HD. apply Rabs_le_between in HD.
  assert (Hp : 0 < 2 - e ^ 2) by nra. unfold relaxed_gain, relaxed_next.
  replace (1 - 2 / (2 - e ^ 2) * D * (2 - D)) with ((2 * (1 - D) ^ 2 - e ^ 2) / (2 - e ^ 2)) by (field; lra).
  unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ _)) by (apply Rlt_le, Rinv_0_lt_compat, Hp).
  apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat, Hp|].
  assert (0 <= (1 - D) ^ 2) by apply pow2_ge_0. assert ((1 - D) ^ 2 <= e ^ 2) by nra.
  apply Rabs_le. lra.
Qed.

Theorem relaxed_bound (d y0 e0 : R) (n : nat) :
  0 <= e0 < 1 -> Rabs (1 - d * y0) <= e0 -> Rabs (1 - d * relaxed d y0 e0 n) <= relaxed_error e0 n.
Proof.
  intros He H. induction n as [|n IH]; [exact H|]. cbn [relaxed relaxed_error].
  replace (d * (relaxed_gain (relaxed_error e0 n) * relaxed d y0 e0 n * (2 - d * relaxed d y0 e0 n)))
    with (relaxed_gain (relaxed_error e0 n) * (d * relaxed d y0 e0 n) * (2 - d * relaxed d y0 e0 n)) by ring.
  apply relaxed_step_error; [now apply relaxed_error_range | exact IH].
Qed.

(** Its bound is never worse than the plain one. *)
Theorem relaxed_no_worse (e0 : R) (n : nat) : 0 <= e0 < 1 -> relaxed_error e0 n <= e0 ^ (2 ^ n).
Proof.
  intros He. induction n as [|n IH]; [cbn; lra|]. rewrite pow_double. cbn [relaxed_error].
  pose proof (relaxed_error_range e0 n He) as Hr. set (e := relaxed_error e0 n) in *.
  apply Rle_trans with (e ^ 2); [|apply pow_incr; split; [lra | exact IH]].
  unfold relaxed_next. assert (0 <= e ^ 2 <= 1) by (split; nra). apply Rle_div_l; [lra|].
  set (x := e ^ 2) in *. nra.
Qed.

(** The interval recurrence in ratios kappa = (1+e)/(1-e): kappa' = (kappa+1)^2 / (4 kappa). *)
Theorem relaxed_interval_ratio (e : R) : 0 <= e < 1 ->
  let ratio t := (1 + t) / (1 - t) in
  ratio (relaxed_next e) = (ratio e + 1) ^ 2 / (4 * ratio e).
Proof.
  intros He ratio. unfold ratio, relaxed_next.
  assert (0 < 1 - e) by lra. assert (0 < 1 + e) by lra. assert (0 < 2 - e ^ 2) by nra.
  field. repeat split; nra.
Qed.

(** 1/e_n is the Chebyshev polynomial T_{2^n} at 1/e_0: where 1/e_0 = cosh t, 1/e_n = cosh (2^n t). *)
Theorem relaxed_error_chebyshev (e0 t : R) (n : nat) :
  0 < t -> / e0 = cosh t -> / relaxed_error e0 n = cosh (2 ^ n * t).
Proof.
  intros Ht H. induction n as [|n IH]; [cbn; now rewrite Rmult_1_l|].
  cbn [relaxed_error pow]. set (e := relaxed_error e0 n) in *. set (u := 2 ^ n * t) in *.
  replace (2 * 2 ^ n * t) with (u + u) by (unfold u; ring).
  assert (Hu : 0 < u) by (apply Rmult_lt_0_compat; [apply pow_lt; lra | exact Ht]).
  assert (Hx : 1 < exp u) by (rewrite <- exp_0; now apply exp_increasing).
  unfold cosh in *. rewrite Ropp_plus_distr, !exp_plus, exp_Ropp in *.
  assert (He : e = 2 * exp u / (exp u ^ 2 + 1)).
  { rewrite <- (Rinv_inv e), IH. field. nra. }
  unfold relaxed_next. rewrite He. field. repeat split; nra.
Qed.

Lemma relaxed_gain_range (e : R) : 0 <= e < 1 -> 1 <= relaxed_gain e < 2.
Proof.
  intros He. assert (0 <= e ^ 2 < 1) by (split; nra). unfold relaxed_gain. split.
  - apply Rle_div_r; lra.
  - apply Rlt_div_l; lra.
Qed.

(** Every constant of a schedule lies in [1, 2]. *)
Theorem schedule_range (e0 : R) (count : nat) (s : nat -> R) (i : nat) :
  0 <= e0 < 1 -> is_schedule e0 count s -> (i <= count)%nat -> 1 <= s i <= 2.
Proof.
  intros He [Hlast Hs] Hi. replace i with (count - (count - i))%nat by lia.
  induction (count - i)%nat as [|j IH]; [rewrite PeanoNat.Nat.sub_0_r; lra|].
  destruct (Compare_dec.le_lt_dec count j) as [|Hj].
  - replace (count - S j)%nat with (count - j)%nat by lia. exact IH.
  - rewrite Hs by lia. replace (S (count - S j))%nat with (count - j)%nat by lia.
    pose proof (relaxed_gain_range _ (relaxed_error_range e0 (count - S j) He)) as Hk.
    set (k := relaxed_gain _) in *. set (t := s (count - j)%nat) in *.
    rewrite <- sqrt_1 at 1. rewrite <- (sqrt_pow2 2) by lra.
    split; apply sqrt_le_1_alt; nra.
Qed.

(** With one seed s_0 y0 for numerator and denominator, the scaled circuit ends at num y_count. *)
Theorem scaled_schedule (num d y0 e0 : R) (count : nat) (s : nat -> R) :
  0 <= e0 < 1 -> is_schedule e0 count s ->
  fst (scaled s (num * (s 0%nat * y0)) (d * (s 0%nat * y0)) count) = num * relaxed d y0 e0 count.
Proof.
  intros He Hs.
  assert (Inv : forall i, (i <= count)%nat ->
    scaled s (num * (s 0%nat * y0)) (d * (s 0%nat * y0)) i
    = (s i * (num * relaxed d y0 e0 i), s i * (d * relaxed d y0 e0 i))).
  { induction i as [|i IH]; intros Hi; [cbn; f_equal; ring|].
    cbn [scaled relaxed]. rewrite IH by lia.
    assert (E : s i * s i = relaxed_gain (relaxed_error e0 i) * s (S i)).
    { destruct Hs as [Hlast Hstep]. rewrite (Hstep i) by lia. apply sqrt_sqrt, Rmult_le_pos.
      - pose proof (relaxed_gain_range _ (relaxed_error_range e0 i He)). lra.
      - pose proof (schedule_range e0 count s (S i) He (conj Hlast Hstep) Hi). lra. }
    set (k := relaxed_gain _) in *. set (y := relaxed d y0 e0 i) in *.
    f_equal.
    - replace (s i * (num * y) * (2 * s i - s i * (d * y))) with (s i * s i * (num * y * (2 - d * y))) by ring.
      rewrite E. ring.
    - replace (s i * (d * y) * (2 * s i - s i * (d * y))) with (s i * s i * (d * y * (2 - d * y))) by ring.
      rewrite E. ring. }
  rewrite Inv by lia. destruct Hs as [-> _]. cbn. ring.
Qed.

(** * Newton's inverse square root *)

(** e' = e^2 (3 - e) / 2, exactly. *)
Theorem newton_error (gain z y : R) : 0 <= z -> gain <> 0 ->
  let e := root_error gain z y in root_error gain z (newton_step gain z y) = e ^ 2 * (3 - e) / 2.
Proof.
  intros Hz Hg. cbn. unfold root_error, newton_step.
  pose proof (sqrt_sqrt z Hz) as E. set (w := sqrt z) in *. rewrite <- E. field. exact Hg.
Qed.

Lemma newton_one_sided (gain z y0 : R) (n : nat) : 0 <= z -> gain <> 0 -> 0 <= root_error gain z y0 <= 1 ->
  0 <= root_error gain z (newton gain z y0 n) <= 1.
Proof.
  intros Hz Hg H0. induction n as [|n IH]; [exact H0|]. cbn [newton]. rewrite newton_error by assumption.
  set (e := root_error gain z (newton gain z y0 n)) in *.
  assert (0 <= e ^ 2 * (3 - e)) by (apply Rmult_le_pos; [apply pow2_ge_0 | lra]).
  assert (0 <= (1 - e) * (2 + 2 * e - e ^ 2)) by (apply Rmult_le_pos; nra). lra.
Qed.

(** From a one-sided error e0 in [0, 1]: (3/2) e_n <= ((3/2) e0)^(2^n), the budget with M = 2/3, r = (3/2) e0. *)
Theorem newton_bound (gain z y0 : R) (n : nat) : 0 <= z -> gain <> 0 -> 0 <= root_error gain z y0 <= 1 ->
  0 <= root_error gain z (newton gain z y0 n) <= budget (2 / 3) (3 / 2 * root_error gain z y0) n.
Proof.
  intros Hz Hg H0. split; [now apply newton_one_sided|].
  induction n as [|n IH]; [unfold budget; cbn; lra|]. cbn [newton]. rewrite newton_error by assumption.
  pose proof (newton_one_sided gain z y0 n Hz Hg H0) as H.
  pose proof (budget_squares (2 / 3) (3 / 2 * root_error gain z y0) n).
  set (e := root_error gain z (newton gain z y0 n)) in *. nra.
Qed.

(** The basin is 0 < y0 sqrt z / gain < sqrt 3: one step brings the error into [0, 1) and it tends to 0. *)
Theorem newton_basin (gain z y0 : R) : 0 <= z -> gain <> 0 -> 0 < y0 * sqrt z / gain < sqrt 3 ->
  0 <= root_error gain z (newton gain z y0 1) < 1
  /\ is_lim_seq (fun n => root_error gain z (newton gain z y0 n)) 0.
Proof.
  intros Hz Hg H.
  assert (H1 : 0 <= root_error gain z (newton gain z y0 1) < 1).
  { cbn [newton]. rewrite newton_error by assumption. unfold root_error.
    assert (H3 : sqrt 3 * sqrt 3 = 3) by (apply sqrt_sqrt; lra). pose proof (sqrt_pos 3).
    set (u := y0 * sqrt z / gain) in *. assert (u * u < 3) by nra.
    assert (0 < u * (3 - u * u)) by (apply Rmult_lt_0_compat; lra).
    assert (0 <= (1 - u) ^ 2 * (2 + u)) by (apply Rmult_le_pos; [apply pow2_ge_0 | lra]). lra. }
  split; [exact H1|].
  set (e1 := root_error gain z (newton gain z y0 1)) in *. pose (q := e1 * (3 - e1) / 2).
  assert (Hq : 0 <= q < 1) by (unfold q; nra).
  apply is_lim_seq_incr_1.
  assert (Geo : forall n, 0 <= root_error gain z (newton gain z y0 (S n)) <= e1 * q ^ n).
  { induction n as [|n IH]; [fold e1; cbn; lra|].
    change (newton gain z y0 (S (S n))) with (newton_step gain z (newton gain z y0 (S n))).
    rewrite newton_error by assumption. change (q ^ S n) with (q * q ^ n).
    set (e := root_error gain z (newton gain z y0 (S n))) in *.
    assert (0 <= q ^ n) by (apply pow_le; lra).
    assert (q ^ n <= 1) by (rewrite <- (pow1 n); apply pow_incr; lra).
    assert (e <= e1) by nra.
    assert (e * (3 - e) / 2 <= q) by (unfold q; nra).
    assert (0 <= e * (3 - e)) by (apply Rmult_le_pos; nra).
    replace (e ^ 2 * (3 - e) / 2) with (e * (e * (3 - e) / 2)) by field.
    replace (e1 * (q * q ^ n)) with (e1 * q ^ n * q) by ring.
    split; [apply Rmult_le_pos; lra | apply Rmult_le_compat; lra]. }
  apply is_lim_seq_le_le with (u := fun _ => 0) (w := fun n => e1 * q ^ n).
  - exact Geo.
  - apply is_lim_seq_const.
  - replace (Finite 0) with (Rbar_mult e1 0) by (cbn; f_equal; ring).
    apply is_lim_seq_scal_l, is_lim_seq_geom. rewrite Rabs_pos_eq; lra.
Qed.

(** At and beyond sqrt 3 the step loses the sign: the basin cannot be widened. *)
Theorem newton_outside_basin (gain z y0 : R) : 0 <= z -> 0 < gain -> sqrt 3 <= y0 * sqrt z / gain ->
  newton_step gain z y0 <= 0.
Proof.
  intros Hz Hg H. unfold newton_step.
  assert (H3 : sqrt 3 * sqrt 3 = 3) by (apply sqrt_sqrt; lra).
  assert (0 < sqrt 3) by (apply sqrt_lt_R0; lra). pose proof (sqrt_pos z).
  assert (E : z * (y0 / gain) ^ 2 = (y0 * sqrt z / gain) ^ 2).
  { pose proof (sqrt_sqrt z Hz) as E. set (w := sqrt z) in *. rewrite <- E. field. lra. }
  rewrite E. set (u := y0 * sqrt z / gain) in *.
  assert (0 <= y0).
  { destruct (Rle_lt_dec 0 y0); [assumption|]. exfalso.
    assert (u = y0 * (sqrt z / gain)) by (unfold u; field; lra).
    assert (0 <= sqrt z / gain) by (apply Rdiv_le_0_compat; lra). nra. }
  assert (0 <= u ^ 2 - 3) by nra. nra.
Qed.
