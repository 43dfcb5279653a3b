(* SPDX-License-Identifier: Apache-2.0 *)
(** Iterations are bits: the bit width whose quantizer errs as much as an n-step iterator.

    Main theorems: [quantizer_error], [quantizer_levels], [iterations_are_bits], [bits_decomposition],
    [bits_bounds], [bits_per_power], [bits_ratio], [bits_theta], [matched_width_meets_budget],
    [matched_width_is_least], [matched_width_bounds], [matched_width_theta]. *)

From Coq Require Import Reals Lra Lia Psatz ZArith.
From Coquelicot Require Import Coquelicot.
From Flocq Require Import Core.Raux.
From Heat Require Import Iterators.
Open Scope R_scope.

(** * Definitions *)

Definition log2 (x : R) : R := ln x / ln 2.

(** A uniform quantizer with 2^b levels over [lo, lo + width]: its step, and rounding to the nearest level,
    saturated at both ends. *)
Definition step (width b : R) : R := width / (Rpower 2 b - 1).
Definition quantize (lo width : R) (b : nat) (w : R) : R :=
  let s := step width (INR b) in
  lo + s * IZR (Z.max 0 (Z.min (2 ^ Z.of_nat b - 1) (Zfloor ((w - lo) / s + 1 / 2)))).

(** The real-valued bit width of Proposition 1. *)
Definition bits (width M r : R) (n : nat) : R := log2 (1 + width / (2 * budget M r n)).

(** The integer width that matches a layer's budget: the ceiling, taken with width = lambda d B R. *)
Definition matched_width (width M r : R) (n : nat) : nat := Z.to_nat (Zceil (bits width M r n)).

(** u_n = Theta(2^n). *)
Definition theta_power (u : nat -> R) : Prop :=
  exists c C, 0 < c /\ 0 < C /\ eventually (fun n => c * 2 ^ n <= u n <= C * 2 ^ n).

(** * Logarithms in base 2 *)

Lemma ln2_pos : 0 < ln 2.
Proof. rewrite <- ln_1. apply ln_increasing; lra. Qed.

Lemma Rpower2_gt_1 (b : R) : 0 < b -> 1 < Rpower 2 b.
Proof. intros Hb. rewrite <- (Rpower_O 2) by lra. apply Rpower_lt; lra. Qed.

Lemma Rpower2_log2 (x : R) : 0 < x -> Rpower 2 (log2 x) = x.
Proof.
  intros Hx. unfold Rpower, log2. pose proof ln2_pos.
  replace (ln x / ln 2 * ln 2) with (ln x) by (field; lra). now apply exp_ln.
Qed.

Lemma log2_Rpower2 (b : R) : log2 (Rpower 2 b) = b.
Proof. unfold log2, Rpower. rewrite ln_exp. pose proof ln2_pos. field. lra. Qed.

Lemma log2_le (x y : R) : 0 < x -> x <= y -> log2 x <= log2 y.
Proof.
  intros Hx Hy. unfold log2, Rdiv. apply Rmult_le_compat_r.
  - apply Rlt_le, Rinv_0_lt_compat, ln2_pos.
  - destruct Hy as [Hy| ->]; [apply Rlt_le, ln_increasing; lra | lra].
Qed.

Lemma log2_mult (x y : R) : 0 < x -> 0 < y -> log2 (x * y) = log2 x + log2 y.
Proof. intros Hx Hy. unfold log2. rewrite ln_mult by assumption. pose proof ln2_pos. field. lra. Qed.

Lemma log2_pos (x : R) : 1 < x -> 0 < log2 x.
Proof.
  intros Hx. unfold log2. apply Rdiv_lt_0_compat; [|apply ln2_pos].
  rewrite <- ln_1. apply ln_increasing; lra.
Qed.

(** ln (1+x) <= x, in base 2. *)
Lemma log2_1p_le (x : R) : 0 <= x -> 0 <= log2 (1 + x) <= x / ln 2.
Proof.
  intros Hx. pose proof ln2_pos. split.
  - replace 0 with (log2 1) by (unfold log2; rewrite ln_1; field; lra). apply log2_le; lra.
  - unfold log2, Rdiv. apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat; lra|].
    rewrite <- (ln_exp x) at 2. destruct Hx as [Hx| <-].
    + apply Rlt_le, ln_increasing; [lra | apply exp_ineq1; lra].
    + rewrite exp_0, Rplus_0_r. lra.
Qed.

(** * The quantizer *)

Lemma Rpower2_levels (b : nat) : Rpower 2 (INR b) = IZR (2 ^ Z.of_nat b).
Proof. rewrite Rpower_pow by lra. rewrite pow_IZR. reflexivity. Qed.

Lemma step_pos (width b : R) : 0 < width -> 0 < b -> 0 < step width b.
Proof. intros Hw Hb. pose proof (Rpower2_gt_1 b Hb). apply Rdiv_lt_0_compat; lra. Qed.

(** Inside the range, the nearest level errs by at most half a step. *)
Theorem quantizer_error (lo width : R) (b : nat) (w : R) :
  0 < width -> (1 <= b)%nat -> lo <= w <= lo + width ->
  Rabs (w - quantize lo width b w) <= step width (INR b) / 2.
Proof.
  intros Hw Hb H. apply le_INR in Hb. cbn in Hb. pose proof (step_pos width (INR b) Hw ltac:(lra)) as Hs.
  pose proof (Rpower2_gt_1 (INR b) ltac:(lra)) as Hp.
  assert (Top : (w - lo) / step width (INR b) <= IZR (2 ^ Z.of_nat b) - 1).
  { rewrite <- Rpower2_levels. apply Rle_div_l; [lra|].
    replace ((Rpower 2 (INR b) - 1) * step width (INR b)) with width by (unfold step; field; lra). lra. }
  unfold quantize. cbv zeta. set (s := step width (INR b)) in *. set (x := (w - lo) / s) in *.
  assert (0 <= x) by (apply Rdiv_le_0_compat; lra).
  assert (E : w = lo + s * x) by (unfold x; field; lra).
  pose proof (Zfloor_lb (x + 1 / 2)) as Hlb. pose proof (Zfloor_ub (x + 1 / 2)) as Hub.
  assert (0 <= Zfloor (x + 1 / 2))%Z by (apply Zfloor_lub; cbn; lra).
  assert (Zfloor (x + 1 / 2) <= 2 ^ Z.of_nat b - 1)%Z.
  { apply Z.lt_succ_r, lt_IZR. rewrite succ_IZR, minus_IZR. lra. }
  rewrite Z.min_r, Z.max_r by assumption. set (k := IZR (Zfloor (x + 1 / 2))) in *.
  rewrite E. replace (lo + s * x - (lo + s * k)) with (s * (x - k)) by ring.
  rewrite Rabs_mult, (Rabs_pos_eq s) by lra.
  assert (Rabs (x - k) <= 1 / 2) by (apply Rabs_le; lra). nra.
Qed.

(** It takes one of 2^b values, lo + k s with 0 <= k < 2^b, whatever w is. *)
Theorem quantizer_levels (lo width : R) (b : nat) (w : R) :
  exists k, (0 <= k < 2 ^ Z.of_nat b)%Z /\ quantize lo width b w = lo + step width (INR b) * IZR k.
Proof.
  eexists. split; [|reflexivity]. assert (0 < 2 ^ Z.of_nat b)%Z by (apply Z.pow_pos_nonneg; lia). lia.
Qed.

(** * Proposition 1 *)

Section Proposition1.
  Variables width M r : R.
  Hypothesis Hwidth : 0 < width.
  Hypothesis HM : 0 < M.
  Hypothesis Hr : 0 < r < 1.

  Local Notation eps := (budget M r).

  Local Lemma eps_pos (n : nat) : 0 < eps n.
  Proof. apply budget_positive; lra. Qed.

  Lemma bits_pos (n : nat) : 0 < bits width M r n.
  Proof.
    pose proof (eps_pos n). apply log2_pos.
    assert (0 < width / (2 * eps n)) by (apply Rdiv_lt_0_compat; lra). lra.
  Qed.

  (** The quantizer's worst error equals the iterator's exactly at b = b_n. *)
  Theorem iterations_are_bits (n : nat) (b : R) : 0 < b ->
    step width b / 2 = budget M r n <-> b = bits width M r n.
  Proof.
    intros Hb. pose proof (eps_pos n) as He. pose proof (Rpower2_gt_1 b Hb) as Hp.
    unfold step, bits. split; intros H.
    - rewrite <- (log2_Rpower2 b). f_equal. rewrite <- H. field. lra.
    - assert (E : Rpower 2 b = 1 + width / (2 * eps n)).
      { rewrite H. apply Rpower2_log2.
        assert (0 < width / (2 * eps n)) by (apply Rdiv_lt_0_compat; lra). lra. }
      rewrite E. field. lra.
  Qed.

  Lemma log2_budget (n : nat) : log2 (width / (2 * eps n)) = 2 ^ n * log2 (1 / r) + log2 (width / (2 * M)).
  Proof.
    assert (Hp : 0 < r ^ (2 ^ n)) by (apply pow_lt; lra).
    replace (width / (2 * eps n)) with ((/ r) ^ (2 ^ n) * (width / (2 * M)))
      by (unfold budget; rewrite pow_inv; set (p := r ^ (2 ^ n)) in *; field; lra).
    rewrite log2_mult.
    - f_equal. unfold log2. rewrite ln_pow by (apply Rinv_0_lt_compat; lra).
      rewrite pow_INR. replace (1 / r) with (/ r) by (field; lra). change (INR 2) with 2.
      pose proof ln2_pos. field. lra.
    - apply pow_lt, Rinv_0_lt_compat. lra.
    - apply Rdiv_lt_0_compat; lra.
  Qed.

  Theorem bits_decomposition (n : nat) :
    bits width M r n
    = 2 ^ n * log2 (1 / r) + log2 (width / (2 * M)) + log2 (1 + 2 * budget M r n / width).
  Proof.
    pose proof (eps_pos n) as He. rewrite <- log2_budget, <- log2_mult.
    - unfold bits. f_equal. field. lra.
    - apply Rdiv_lt_0_compat; lra.
    - assert (0 < 2 * eps n / width) by (apply Rdiv_lt_0_compat; lra). lra.
  Qed.

  Theorem bits_bounds (n : nat) :
    2 ^ n * log2 (1 / r) + log2 (width / (2 * M)) <= bits width M r n
    <= 2 ^ n * log2 (1 / r) + log2 (width / (2 * M)) + 2 * budget M r n / (width * ln 2).
  Proof.
    pose proof (eps_pos n) as He. rewrite bits_decomposition.
    assert (H : 0 <= 2 * eps n / width) by (apply Rdiv_le_0_compat; lra).
    apply log2_1p_le in H. pose proof ln2_pos.
    replace (2 * eps n / (width * ln 2)) with (2 * eps n / width / ln 2) by (field; lra). lra.
  Qed.

  Local Lemma vanishing_share (c : R) : is_lim_seq (fun n => c / 2 ^ n) 0.
  Proof.
    replace (Finite 0) with (Rbar_mult c 0) by (cbn; f_equal; ring).
    apply is_lim_seq_ext with (fun n => c * (/ 2) ^ n).
    - intros n. now rewrite pow_inv.
    - apply is_lim_seq_scal_l, is_lim_seq_geom. rewrite Rabs_pos_eq; lra.
  Qed.

  (** b_n / 2^n tends to log2 (1/r). *)
  Theorem bits_per_power : is_lim_seq (fun n => bits width M r n / 2 ^ n) (log2 (1 / r)).
  Proof.
    pose (c := log2 (width / (2 * M))). pose (t := 2 * M / (width * ln 2)).
    pose proof ln2_pos as Hl.
    apply is_lim_seq_le_le with (u := fun n => log2 (1 / r) + c / 2 ^ n)
                                (w := fun n => log2 (1 / r) + (c + t) / 2 ^ n).
    - intros n. pose proof (bits_bounds n) as [H1 H2]. fold c in H1, H2.
      assert (Hp : 0 < 2 ^ n) by (apply pow_lt; lra).
      assert (Ht : 2 * budget M r n / (width * ln 2) <= t).
      { unfold t, Rdiv. apply Rmult_le_compat_r.
        - apply Rlt_le, Rinv_0_lt_compat. nra.
        - unfold budget. assert (r ^ (2 ^ n) <= 1) by (rewrite <- (pow1 (2 ^ n)); apply pow_incr; lra). nra. }
      replace (log2 (1 / r) + c / 2 ^ n) with ((2 ^ n * log2 (1 / r) + c) / 2 ^ n) by (field; lra).
      replace (log2 (1 / r) + (c + t) / 2 ^ n) with ((2 ^ n * log2 (1 / r) + c + t) / 2 ^ n) by (field; lra).
      unfold Rdiv. split; apply Rmult_le_compat_r; try lra; apply Rlt_le, Rinv_0_lt_compat, Hp.
    - replace (Finite (log2 (1 / r))) with (Rbar_plus (log2 (1 / r)) 0) by (cbn; f_equal; ring).
      apply is_lim_seq_plus'; [apply is_lim_seq_const | apply vanishing_share].
    - replace (Finite (log2 (1 / r))) with (Rbar_plus (log2 (1 / r)) 0) by (cbn; f_equal; ring).
      apply is_lim_seq_plus'; [apply is_lim_seq_const | apply vanishing_share].
  Qed.

  Lemma log2_rate_pos : 0 < log2 (1 / r).
  Proof. apply log2_pos. apply Rlt_div_r; lra. Qed.

  (** Each iteration doubles the bits in the limit. *)
  Theorem bits_ratio : is_lim_seq (fun n => bits width M r (S n) / bits width M r n) 2.
  Proof.
    pose proof log2_rate_pos as Hl.
    apply is_lim_seq_ext with
      (fun n => 2 * ((bits width M r (S n) / 2 ^ S n) / (bits width M r n / 2 ^ n))).
    - intros n. pose proof (bits_pos n). assert (0 < 2 ^ n) by (apply pow_lt; lra).
      cbn [pow]. field. lra.
    - replace (Finite 2) with (Rbar_mult 2 (log2 (1 / r) / log2 (1 / r))) by (cbn; f_equal; field; lra).
      apply is_lim_seq_scal_l, is_lim_seq_div'; [|apply bits_per_power | lra].
      apply (is_lim_seq_incr_1 (fun n => bits width M r n / 2 ^ n)), bits_per_power.
  Qed.

  (** A sequence with u_n / 2^n -> l > 0 is Theta(2^n). *)
  Local Lemma theta_of_limit (u : nat -> R) (l : R) :
    0 < l -> is_lim_seq (fun n => u n / 2 ^ n) l -> theta_power u.
  Proof.
    intros Hl Hu. exists (l / 2), (3 / 2 * l). repeat split; [lra | lra |].
    apply is_lim_seq_spec in Hu. destruct (Hu (mkposreal (l / 2) ltac:(lra))) as [N HN].
    exists N. intros n Hn. specialize (HN n Hn). cbn in HN. apply Rabs_def2 in HN.
    assert (Hp : 0 < 2 ^ n) by (apply pow_lt; lra).
    replace (u n) with (u n / 2 ^ n * 2 ^ n) by (field; lra). split; apply Rmult_le_compat_r; lra.
  Qed.

  Theorem bits_theta : theta_power (bits width M r).
  Proof. exact (theta_of_limit _ _ log2_rate_pos bits_per_power). Qed.

  (** * The matched integer width *)

  Lemma matched_width_INR (n : nat) : INR (matched_width width M r n) = IZR (Zceil (bits width M r n)).
  Proof.
    unfold matched_width. rewrite INR_IZR_INZ, Z2Nat.id; [reflexivity|].
    apply le_IZR. pose proof (Zceil_ub (bits width M r n)). pose proof (bits_pos n). lra.
  Qed.

  Theorem matched_width_bounds (n : nat) :
    (1 <= matched_width width M r n)%nat
    /\ bits width M r n <= INR (matched_width width M r n) < bits width M r n + 1.
  Proof.
    pose proof (bits_pos n) as Hb. pose proof (Zceil_ub (bits width M r n)) as Hu.
    assert (Hc : IZR (Zceil (bits width M r n)) < bits width M r n + 1).
    { unfold Zceil. rewrite opp_IZR. pose proof (Zfloor_ub (- bits width M r n)). lra. }
    rewrite matched_width_INR. repeat split; try assumption.
    apply INR_le. rewrite matched_width_INR. cbn. apply (IZR_le 1).
    apply (Zlt_le_succ 0), lt_IZR. lra.
  Qed.

  Local Lemma step_antitone (b c : R) : 0 < b <= c -> step width c <= step width b.
  Proof.
    intros H. pose proof (Rpower2_gt_1 b ltac:(lra)). unfold step, Rdiv.
    apply Rmult_le_compat_l; [lra|]. apply Rinv_le_contravar; [lra|].
    assert (Rpower 2 b <= Rpower 2 c) by (apply Rle_Rpower; lra). lra.
  Qed.

  (** At the matched width the quantizer's error is within the iterator's budget ... *)
  Theorem matched_width_meets_budget (n : nat) :
    step width (INR (matched_width width M r n)) / 2 <= budget M r n.
  Proof.
    pose proof (bits_pos n) as Hb. destruct (matched_width_bounds n) as [_ H].
    apply Rle_trans with (step width (bits width M r n) / 2).
    - assert (step width (INR (matched_width width M r n)) <= step width (bits width M r n))
        by (apply step_antitone; lra). lra.
    - right. now apply iterations_are_bits.
  Qed.

  (** ... and no smaller integer width has that property. *)
  Theorem matched_width_is_least (n b : nat) : (1 <= b)%nat ->
    step width (INR b) / 2 <= budget M r n -> (matched_width width M r n <= b)%nat.
  Proof.
    intros Hb H. apply le_INR in Hb. cbn in Hb. apply INR_le. rewrite matched_width_INR, INR_IZR_INZ.
    apply IZR_le, Zceil_glb. rewrite <- INR_IZR_INZ.
    pose proof (eps_pos n) as He. pose proof (Rpower2_gt_1 (INR b) ltac:(lra)) as Hp.
    rewrite <- (log2_Rpower2 (INR b)). unfold bits.
    assert (0 < width / (2 * eps n)) by (apply Rdiv_lt_0_compat; lra). apply log2_le; [lra|].
    assert (width / (2 * eps n) <= Rpower 2 (INR b) - 1); [|lra].
    apply Rle_div_l; [lra|]. unfold step in H.
    assert (H1 : width / (Rpower 2 (INR b) - 1) <= 2 * eps n) by lra.
    apply -> Rle_div_l in H1; lra.
  Qed.

  Theorem matched_width_theta : theta_power (fun n => INR (matched_width width M r n)).
  Proof.
    apply theta_of_limit with (l := log2 (1 / r)); [exact log2_rate_pos|].
    apply is_lim_seq_le_le with (u := fun n => bits width M r n / 2 ^ n)
                                (w := fun n => bits width M r n / 2 ^ n + 1 / 2 ^ n).
    - intros n. destruct (matched_width_bounds n) as [_ H]. assert (Hp : 0 < 2 ^ n) by (apply pow_lt; lra).
      replace (bits width M r n / 2 ^ n + 1 / 2 ^ n) with ((bits width M r n + 1) / 2 ^ n) by (field; lra).
      unfold Rdiv. split; apply Rmult_le_compat_r; try lra; apply Rlt_le, Rinv_0_lt_compat, Hp.
    - apply bits_per_power.
    - replace (Finite (log2 (1 / r))) with (Rbar_plus (log2 (1 / r)) 0) by (cbn; f_equal; ring).
      apply is_lim_seq_plus'; [apply bits_per_power | apply vanishing_share].
  Qed.

End Proposition1.
