(* SPDX-License-Identifier: Apache-2.0 *)
(** Softmax in two phases: square-and-normalise doubles the scores, common factors cancel, and the sum of
    squares that the refinement inverts lies in a known domain.

    Main theorems: [softmax_is_distribution], [square_normalise_softmax], [passes_softmax], [common_factor_cancels],
    [single_pass_identity], [single_pass_error], [sum_of_squares_range], [mean_one_range], [sum_of_squares_ratio],
    [sum_of_squares_cosh], [refine_domain], [exponential_sum_range]. *)

From Coq Require Import Reals Lra Lia Psatz.
From Heat Require Import Sums.
Open Scope R_scope.

(** * Definitions *)

Definition softmax (n : nat) (x : nat -> R) (i : nat) : R := exp (x i) / total n (fun j => exp (x j)).

(** One refinement pass: square, then divide by the sum of squares. *)
Definition square_normalise (n : nat) (y : nat -> R) (i : nat) : R := y i ^ 2 / total n (fun j => y j ^ 2).

Fixpoint passes (n : nat) (y : nat -> R) (t : nat) : nat -> R :=
  match t with
  | O => y
  | S u => square_normalise n (passes n y u)
  end.

Definition is_distribution (n : nat) (y : nat -> R) : Prop :=
  (forall i, (i < n)%nat -> 0 <= y i) /\ total n y = 1.

(** * Square-and-normalise *)

Lemma exp_sum_pos (n : nat) (x : nat -> R) : (0 < n)%nat -> 0 < total n (fun j => exp (x j)).
Proof. intros Hn. apply total_pos; [exact Hn|]. intros. apply exp_pos. Qed.

Theorem softmax_is_distribution (n : nat) (x : nat -> R) : (0 < n)%nat -> is_distribution n (softmax n x).
Proof.
  intros Hn. pose proof (exp_sum_pos n x Hn) as HS. split.
  - intros i _. apply Rlt_le, Rdiv_lt_0_compat; [apply exp_pos | exact HS].
  - unfold softmax. rewrite (total_ext n _ (fun i => / total n (fun j => exp (x j)) * exp (x i)))
      by (intros; unfold Rdiv; ring).
    rewrite total_scale. field. lra.
Qed.

(** A factor common to the row, such as the whole error of the previous reciprocal, cancels. *)
Theorem common_factor_cancels (n : nat) (c : R) (y : nat -> R) (i : nat) :
  c <> 0 -> total n (fun j => y j ^ 2) <> 0 ->
  square_normalise n (fun j => c * y j) i = square_normalise n y i.
Proof.
  intros Hc HS. unfold square_normalise.
  rewrite (total_ext n (fun j => (c * y j) ^ 2) (fun j => c ^ 2 * y j ^ 2)) by (intros; ring).
  rewrite total_scale. field. split; assumption.
Qed.

Lemma square_normalise_ext (n : nat) (y z : nat -> R) (i : nat) : (forall j, y j = z j) ->
  square_normalise n y i = square_normalise n z i.
Proof.
  intros H. unfold square_normalise. rewrite H. f_equal. apply total_ext. intros j _. now rewrite H.
Qed.

Lemma exp_squares (n : nat) (x : nat -> R) :
  total n (fun j => exp (x j) ^ 2) = total n (fun j => exp (2 * x j)).
Proof. apply total_ext. intros j _. replace (2 * x j) with (x j + x j) by ring. rewrite exp_plus. ring. Qed.

(** Softmax(x), squared and normalised, is Softmax(2x). *)
Theorem square_normalise_softmax (n : nat) (x : nat -> R) (i : nat) : (0 < n)%nat ->
  square_normalise n (softmax n x) i = softmax n (fun j => 2 * x j) i.
Proof.
  intros Hn. pose proof (exp_sum_pos n x Hn) as HS. pose proof (exp_sum_pos n (fun j => 2 * x j) Hn) as HS2.
  cbn beta in HS2. rewrite <- (exp_squares n x) in HS2. set (S := total n (fun j => exp (x j))) in *.
  rewrite (square_normalise_ext n _ (fun j => / S * exp (x j)))
    by (intros j; unfold softmax; fold S; unfold Rdiv; ring).
  rewrite common_factor_cancels; [|apply Rinv_neq_0_compat; lra | lra].
  unfold square_normalise, softmax. rewrite exp_squares. f_equal.
  replace (2 * x i) with (x i + x i) by ring. rewrite exp_plus. ring.
Qed.

(** After t passes the scores are multiplied by 2^t. *)
Theorem passes_softmax (n : nat) (x : nat -> R) (t i : nat) : (0 < n)%nat ->
  passes n (softmax n x) t i = softmax n (fun j => 2 ^ t * x j) i.
Proof.
  intros Hn. revert i. induction t as [|t IH]; intros i.
  - unfold softmax; cbn. f_equal; [f_equal; ring|]. apply total_ext. intros. f_equal. ring.
  - cbn [passes]. rewrite (square_normalise_ext n _ _ i IH), square_normalise_softmax by exact Hn.
    unfold softmax. f_equal; [f_equal; cbn; ring|]. apply total_ext. intros. f_equal. cbn. ring.
Qed.

(** * The single pass used in training *)

(** Values weighted after the two phases equal one sweep's A = sum e^2 v, times r1^2 r2. *)
Theorem single_pass_identity (n : nat) (e v : nat -> R) (r1 r2 : R) :
  total n (fun j => (e j * r1) ^ 2 * r2 * v j) = total n (fun j => e j ^ 2 * v j) * r1 ^ 2 * r2.
Proof.
  rewrite (total_ext n _ (fun j => (r1 ^ 2 * r2) * (e j ^ 2 * v j))) by (intros; ring).
  rewrite total_scale. ring.
Qed.

(** Whatever r1 is, the relative error of the output is that of r2 as a reciprocal of r1^2 sum e^2. *)
Theorem single_pass_error (n : nat) (e v : nat -> R) (r1 r2 : R) :
  let A := total n (fun j => e j ^ 2 * v j) in
  let S2 := total n (fun j => e j ^ 2) in
  S2 <> 0 -> A * r1 ^ 2 * r2 = A / S2 * (1 - (1 - r1 ^ 2 * S2 * r2)).
Proof. intros A S2 H. field. exact H. Qed.

(** * The domain of the refinement *)

Lemma total_square_le (n : nat) (y : nat -> R) : total n y ^ 2 <= INR n * total n (fun i => y i ^ 2).
Proof.
  (* the variance is non-negative: sum (n y_i - T)^2 >= 0, divided by n *)
  destruct n as [|n]; [cbn; lra|].
  set (N := INR (S n)). set (T := total (S n) y). set (Q := total (S n) (fun i => y i ^ 2)).
  assert (HN : 0 < N) by (apply lt_0_INR; lia).
  assert (H : 0 <= total (S n) (fun i => (N * y i - T) ^ 2)) by (apply total_nonneg; intros; apply pow2_ge_0).
  rewrite (total_ext (S n) _ (fun i => N ^ 2 * y i ^ 2 + (- (2 * N * T) * y i + T ^ 2))) in H by (intros; ring).
  rewrite !total_plus, !total_scale, total_const in H. fold N T Q in H.
  assert (0 <= N * (N * Q - T ^ 2)) by lra. nra.
Qed.

(** The sum of squares of a distribution lies in [1/n, 1]. *)
Theorem sum_of_squares_range (n : nat) (y : nat -> R) : (0 < n)%nat -> is_distribution n y ->
  1 / INR n <= total n (fun i => y i ^ 2) <= 1.
Proof.
  intros Hn [Hy H1]. apply lt_0_INR in Hn. split.
  - pose proof (total_square_le n y) as H. rewrite H1 in H.
    apply Rmult_le_reg_l with (INR n); [exact Hn|]. field_simplify; lra.
  - rewrite <- H1. apply total_le. intros i Hi. specialize (Hy i Hi) as H0.
    pose proof (total_term n y i Hi Hy). nra.
Qed.

(** For mean-one rows Y = n y, the mean of Y^2 lies in [1, n]. *)
Theorem mean_one_range (n : nat) (y : nat -> R) : (0 < n)%nat -> is_distribution n y ->
  1 <= total n (fun i => (INR n * y i) ^ 2) / INR n <= INR n.
Proof.
  intros Hn H. pose proof (sum_of_squares_range n y Hn H) as [Hlo Hhi]. apply lt_0_INR in Hn.
  rewrite (total_ext n _ (fun i => INR n ^ 2 * y i ^ 2)) by (intros; ring). rewrite total_scale.
  set (Q := total n (fun i => y i ^ 2)) in *. replace (INR n ^ 2 * Q / INR n) with (INR n * Q) by (field; lra).
  split; [|nra]. apply (Rmult_le_compat_l (INR n)) in Hlo; [|lra]. field_simplify in Hlo; lra.
Qed.

(** Schweitzer's inequality: weights within [a, b] keep n sum y^2 below (a+b)^2 / (4ab). *)
Theorem sum_of_squares_ratio (n : nat) (y : nat -> R) (a b : R) : 0 < a -> a <= b ->
  (forall i, (i < n)%nat -> a <= y i <= b) -> total n y = 1 ->
  INR n * total n (fun i => y i ^ 2) <= (a + b) ^ 2 / (4 * a * b).
Proof.
  intros Ha Hab Hy H1. set (N := INR n). set (Q := total n (fun i => y i ^ 2)).
  assert (H : 0 <= total n (fun i => (y i - a) * (b - y i))).
  { apply total_nonneg. intros i Hi. specialize (Hy i Hi). apply Rmult_le_pos; lra. }
  rewrite (total_ext n _ (fun i => (a + b) * y i + (-1 * y i ^ 2 + - (a * b)))) in H by (intros; ring).
  rewrite !total_plus, !total_scale, total_const, H1 in H. fold N Q in H.
  assert (0 < a * b) by nra. assert (0 <= N) by apply pos_INR.
  apply Rmult_le_reg_r with (4 * a * b); [lra|].
  replace ((a + b) ^ 2 / (4 * a * b) * (4 * a * b)) with ((a + b) ^ 2) by (field; lra).
  assert (0 <= (a + b - 2 * N * (a * b)) ^ 2) by apply pow2_ge_0.
  assert (N * (a * b) * Q <= N * (a * b) * (a + b - N * (a * b))) by (apply Rmult_le_compat_l; [nra | lra]).
  lra.
Qed.

(** For a softmax row whose scores span at most [width], that is cosh^2 (width / 2). *)
Theorem sum_of_squares_cosh (n : nat) (x : nat -> R) (lo width : R) : (0 < n)%nat -> 0 <= width ->
  (forall i, (i < n)%nat -> lo <= x i <= lo + width) ->
  INR n * total n (fun i => softmax n x i ^ 2) <= cosh (width / 2) ^ 2.
Proof.
  intros Hn Hw Hx. pose proof (exp_sum_pos n x Hn) as HS. set (S := total n (fun j => exp (x j))) in *.
  assert (Mono : forall u v, u <= v -> exp u <= exp v)
    by (intros u v [H| ->]; [left; now apply exp_increasing | lra]).
  pose (a := exp lo / S). pose (b := exp (lo + width) / S).
  assert (Scale : forall u v, u <= v -> exp u / S <= exp v / S).
  { intros u v H. apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat, HS | now apply Mono]. }
  eapply Rle_trans; [apply (sum_of_squares_ratio n _ a b)|].
  - apply Rdiv_lt_0_compat; [apply exp_pos | exact HS].
  - apply Scale. lra.
  - intros i Hi. specialize (Hx i Hi). split; apply Scale; lra.
  - apply (softmax_is_distribution n x Hn).
  - right. unfold a, b, cosh. replace (lo + width) with (lo + (width / 2 + width / 2)) by field.
    rewrite !exp_plus, exp_Ropp. pose proof (exp_pos lo). pose proof (exp_pos (width / 2)). field. lra.
Qed.

(** The domain of the refinement in all: a first reciprocal that leaves the row's sum at [c] in [1-e, 1+o] gives
    mean-one rows Y = c n y whose mean square lies in [(1-e)^2, (1+o)^2 min (n, cosh^2 (width/2))]. *)
Theorem refine_domain (n : nat) (x : nat -> R) (lo width c e o : R) : (0 < n)%nat -> 0 <= width ->
  (forall i, (i < n)%nat -> lo <= x i <= lo + width) -> 0 <= 1 - e <= c -> c <= 1 + o ->
  (1 - e) ^ 2 <= total n (fun i => (c * (INR n * softmax n x i)) ^ 2) / INR n
  <= (1 + o) ^ 2 * Rmin (INR n) (cosh (width / 2) ^ 2).
Proof.
  intros Hn Hw Hx He Ho. pose proof (mean_one_range n _ Hn (softmax_is_distribution n x Hn)) as [Hlo Hhi].
  pose proof (sum_of_squares_cosh n x lo width Hn Hw Hx) as Hcosh. apply lt_0_INR in Hn.
  rewrite (total_ext n _ (fun i => c ^ 2 * (INR n * softmax n x i) ^ 2)) by (intros; ring). rewrite total_scale.
  rewrite (total_ext n (fun i => (INR n * softmax n x i) ^ 2) (fun i => INR n ^ 2 * softmax n x i ^ 2)) in *
    by (intros; ring).
  rewrite total_scale in *. set (Q := total n (fun i => softmax n x i ^ 2)) in *.
  replace (INR n ^ 2 * Q / INR n) with (INR n * Q) in Hlo, Hhi by (field; lra).
  replace (c ^ 2 * (INR n ^ 2 * Q) / INR n) with (c ^ 2 * (INR n * Q)) by (field; lra).
  assert ((1 - e) ^ 2 <= c ^ 2) by (apply pow_incr; lra). assert (c ^ 2 <= (1 + o) ^ 2) by (apply pow_incr; lra).
  assert (INR n * Q <= Rmin (INR n) (cosh (width / 2) ^ 2)) by (apply Rmin_glb; assumption).
  assert (0 <= (1 - e) ^ 2) by apply pow2_ge_0. split; [nra | apply Rmult_le_compat; lra].
Qed.

(** The domain of the first reciprocal: the mean of exponentials of scores in [-h, h]. *)
Theorem exponential_sum_range (n : nat) (x : nat -> R) (h : R) : (0 < n)%nat ->
  (forall i, (i < n)%nat -> - h <= x i <= h) ->
  exp (- h) <= total n (fun i => exp (x i)) / INR n <= exp h.
Proof.
  intros Hn Hx. apply lt_0_INR in Hn as HN.
  assert (Mono : forall u v, u <= v -> exp u <= exp v)
    by (intros u v [H| ->]; [left; now apply exp_increasing | lra]).
  assert (Lo : total n (fun _ => exp (- h)) <= total n (fun i => exp (x i)))
    by (apply total_le; intros i Hi; apply Mono, Hx, Hi).
  assert (Hi : total n (fun i => exp (x i)) <= total n (fun _ => exp h))
    by (apply total_le; intros i Hi; apply Mono, Hx, Hi).
  rewrite total_const in Lo, Hi. set (T := total n (fun i => exp (x i))) in *.
  split; apply Rmult_le_reg_l with (INR n); try exact HN; field_simplify; lra.
Qed.
