(* SPDX-License-Identifier: Apache-2.0 *)
(** Per-layer errors through a network: trajectories in the sup norm, the matched-precision theorem, its per-site
    form and the fidelity bound, for entry-wise layers and for general block operators.

    Main theorems: [trajectory_bound], [trajectory_bound_sites], [block_deviation], [block_fidelity],
    [block_matched_precision], [layer_lipschitz], [activation_perturbation], [fidelity], [mixed_precision],
    [matched_precision], [matched_precision_vanishes], [margin_keeps_top1], [norm_block_error]. *)

From Coq Require Import Reals Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Heat Require Import Sums Iterators Bits.
Open Scope R_scope.

(** * Definitions *)

(** A vector is its coordinates; only those below the width [d] count. *)
Definition vec := nat -> R.

Fixpoint norm (d : nat) (x : vec) : R :=
  match d with
  | O => 0
  | S c => Rmax (norm c x) (Rabs (x c))
  end.
Definition dist (d : nat) (x y : vec) : R := norm d (fun i => x i - y i).
Definition dot (d : nat) (w h : vec) : R := total d (fun j => w j * h j).

(** The activation after [l] layers. *)
Fixpoint run (layers : nat -> vec -> vec) (h0 : vec) (l : nat) : vec :=
  match l with
  | O => h0
  | S k => layers k (run layers h0 k)
  end.

(** rho_first ... rho_(first+k-1): how k layers carry an error forward. *)
Fixpoint carry (rho : nat -> R) (first k : nat) : R :=
  match k with
  | O => 1
  | S j => carry rho first j * rho (first + j)%nat
  end.

(** The error at the output of [L] layers: each layer's own, carried through those after it. *)
Definition accumulated (rho e : nat -> R) (L : nat) : R := total L (fun l => carry rho (S l) (L - S l) * e l).

(** An entry-wise layer: h -> f (W h). *)
Definition layer (d : nat) (f : R -> R) (W : nat -> vec) (h : vec) : vec := fun i => f (dot d (W i) h).

Definition lipschitz_on (D : R -> Prop) (lambda : R) (f : R -> R) : Prop :=
  forall x y, D x -> D y -> Rabs (f x - f y) <= lambda * Rabs (x - y).

(** * The sup norm *)

Lemma norm_nonneg (d : nat) (x : vec) : 0 <= norm d x.
Proof. destruct d; cbn; [lra|]. eapply Rle_trans; [apply Rabs_pos | apply Rmax_r]. Qed.

Lemma norm_coord (d : nat) (x : vec) (i : nat) : (i < d)%nat -> Rabs (x i) <= norm d x.
Proof.
  induction d as [|d IH]; intros Hi; [lia|]. cbn. destruct (PeanoNat.Nat.eq_dec i d) as [->|]; [apply Rmax_r|].
  eapply Rle_trans; [apply IH; lia | apply Rmax_l].
Qed.

Lemma norm_le (d : nat) (x : vec) (e : R) : 0 <= e -> (forall i, (i < d)%nat -> Rabs (x i) <= e) -> norm d x <= e.
Proof.
  intros He. induction d as [|d IH]; intros H; [exact He|]. cbn. apply Rmax_lub; [|apply H; lia].
  apply IH. intros. apply H. lia.
Qed.

Lemma dist_nonneg (d : nat) (x y : vec) : 0 <= dist d x y.
Proof. apply norm_nonneg. Qed.

Lemma dist_refl (d : nat) (x : vec) : dist d x x = 0.
Proof.
  apply Rle_antisym; [|apply dist_nonneg]. apply norm_le; [lra|]. intros. rewrite Rminus_eq_0, Rabs_R0. lra.
Qed.

Lemma dist_sym (d : nat) (x y : vec) : dist d x y = dist d y x.
Proof.
  apply Rle_antisym; apply norm_le; try apply dist_nonneg; intros i Hi; rewrite Rabs_minus_sym;
    exact (norm_coord d _ i Hi).
Qed.

Lemma dist_triangle (d : nat) (x y z : vec) : dist d x z <= dist d x y + dist d y z.
Proof.
  pose proof (dist_nonneg d x y). pose proof (dist_nonneg d y z). apply norm_le; [lra|]. intros i Hi.
  replace (x i - z i) with ((x i - y i) + (y i - z i)) by ring. eapply Rle_trans; [apply Rabs_triang|].
  apply Rplus_le_compat; [exact (norm_coord d (fun i => x i - y i) i Hi) | exact (norm_coord d (fun i => y i - z i) i Hi)].
Qed.

(** * The trajectory bound *)

Lemma accumulated_S (rho e : nat -> R) (L : nat) :
  accumulated rho e (S L) = rho L * accumulated rho e L + e L.
Proof.
  unfold accumulated. cbn [total]. rewrite PeanoNat.Nat.sub_diag. cbn [carry]. rewrite Rmult_1_l. f_equal.
  rewrite <- total_scale. apply total_ext. intros l Hl.
  replace (S L - S l)%nat with (S (L - S l)) by lia. cbn [carry].
  replace (S l + (L - S l))%nat with L by lia. ring.
Qed.

(** Each layer has its own Lipschitz constant and its own error. *)
Theorem trajectory_bound_sites (rho e delta : nat -> R) (L : nat) :
  delta 0%nat = 0 -> (forall l, (l < L)%nat -> 0 <= rho l) ->
  (forall l, (l < L)%nat -> delta (S l) <= rho l * delta l + e l) ->
  delta L <= accumulated rho e L.
Proof.
  intros H0 Hrho Hstep. induction L as [|L IH]; [cbn; lra|]. rewrite accumulated_S.
  eapply Rle_trans; [apply Hstep; lia|]. apply Rplus_le_compat_r, Rmult_le_compat_l; [apply Hrho; lia|].
  apply IH; intros; [apply Hrho | apply Hstep]; lia.
Qed.

Lemma carry_const (rho : R) (first k : nat) : carry (fun _ => rho) first k = rho ^ k.
Proof. induction k as [|k IH]; cbn; [|rewrite IH]; ring. Qed.

(** With one Lipschitz constant: sum_l rho^(L-1-l) e_l. *)
Lemma accumulated_const_rho (rho : R) (e : nat -> R) (L : nat) :
  accumulated (fun _ => rho) e L = total L (fun l => rho ^ (L - S l) * e l).
Proof. apply total_ext. intros. now rewrite carry_const. Qed.

(** With one error too: e sum_{j<L} rho^j. *)
Lemma accumulated_const (rho e : R) (L : nat) :
  accumulated (fun _ => rho) (fun _ => e) L = e * total L (fun j => rho ^ j).
Proof.
  induction L as [|L IH]; [cbn; ring|]. rewrite accumulated_S, IH, (total_head L).
  rewrite (total_ext L (fun i => rho ^ S i) (fun i => rho * rho ^ i)) by reflexivity.
  rewrite (total_scale L rho (fun i => rho ^ i)), pow_O. ring.
Qed.

Theorem trajectory_bound (rho e : R) (delta : nat -> R) (L : nat) :
  delta 0%nat = 0 -> 0 <= rho -> (forall l, (l < L)%nat -> delta (S l) <= rho * delta l + e) ->
  forall l, (l <= L)%nat -> delta l <= e * total l (fun j => rho ^ j).
Proof.
  intros H0 Hrho Hstep l Hl. rewrite <- accumulated_const.
  apply trajectory_bound_sites; [exact H0 | intros; exact Hrho | intros; apply Hstep; lia].
Qed.

(** * General block operators *)

Section Blocks.
  (** [width l] is the width of the activations entering layer [l]; [D l] the set where its constant holds. *)
  Variable width : nat -> nat.
  Variable L : nat.
  Variable exact : nat -> vec -> vec.
  Variable h0 : vec.
  Variable rho : nat -> R.
  Variable D : nat -> vec -> Prop.

  Hypothesis rho_nonneg : forall l, (l < L)%nat -> 0 <= rho l.
  Hypothesis exact_lipschitz : forall l x y, (l < L)%nat -> D l x -> D l y ->
    dist (width (S l)) (exact l x) (exact l y) <= rho l * dist (width l) x y.
  Hypothesis exact_inside : forall l, (l < L)%nat -> D l (run exact h0 l).

  (** A perturbed network: inside the domains, each block errs by at most [e l] where it is evaluated. *)
  Definition perturbed (e : nat -> R) (blocks : nat -> vec -> vec) : Prop :=
    forall l, (l < L)%nat -> D l (run blocks h0 l)
      /\ dist (width (S l)) (blocks l (run blocks h0 l)) (exact l (run blocks h0 l)) <= e l.

  Theorem block_deviation (e : nat -> R) (blocks : nat -> vec -> vec) : perturbed e blocks ->
    dist (width L) (run blocks h0 L) (run exact h0 L) <= accumulated rho e L.
  Proof.
    intros H.
    apply (trajectory_bound_sites rho e (fun l => dist (width l) (run blocks h0 l) (run exact h0 l)));
      [apply dist_refl | exact rho_nonneg |].
    intros l Hl. destruct (H l Hl) as [Hin He]. cbn [run].
    eapply Rle_trans; [apply dist_triangle with (y := exact l (run blocks h0 l))|].
    pose proof (exact_lipschitz l _ _ Hl Hin (exact_inside l Hl)). lra.
  Qed.

  Variable loss : vec -> R.
  Variable xi : R.
  Hypothesis xi_nonneg : 0 <= xi.
  Hypothesis loss_lipschitz : forall x y, Rabs (loss x - loss y) <= xi * dist (width L) x y.

  (** The perturbed network against the exact one. *)
  Theorem block_fidelity (e : nat -> R) (blocks : nat -> vec -> vec) : perturbed e blocks ->
    Rabs (loss (run blocks h0 L) - loss (run exact h0 L)) <= xi * accumulated rho e L.
  Proof.
    intros H. eapply Rle_trans; [apply loss_lipschitz|]. apply Rmult_le_compat_l; [exact xi_nonneg|].
    now apply block_deviation.
  Qed.

  (** Two perturbed networks with the same per-layer errors, against each other. *)
  Theorem block_matched_precision (e : nat -> R) (approximate quantized : nat -> vec -> vec) :
    perturbed e approximate -> perturbed e quantized ->
    Rabs (loss (run approximate h0 L) - loss (run quantized h0 L)) <= 2 * xi * accumulated rho e L.
  Proof.
    intros HA HQ. eapply Rle_trans; [apply loss_lipschitz|].
    replace (2 * xi * accumulated rho e L) with (xi * (accumulated rho e L + accumulated rho e L)) by ring.
    apply Rmult_le_compat_l; [exact xi_nonneg|].
    eapply Rle_trans; [apply dist_triangle with (y := run exact h0 L)|].
    rewrite (dist_sym _ (run exact h0 L)). apply Rplus_le_compat; now apply block_deviation.
  Qed.
End Blocks.

(** * Entry-wise layers *)

Lemma dot_diff (d : nat) (w x y : vec) : dot d w x - dot d w y = total d (fun j => w j * (x j - y j)).
Proof.
  unfold dot. replace (total d (fun j => w j * x j) - total d (fun j => w j * y j))
    with (total d (fun j => w j * x j) + -1 * total d (fun j => w j * y j)) by ring.
  rewrite <- total_scale, <- total_plus. apply total_ext. intros. ring.
Qed.

(** Step 0: rows of l1-norm at most kappa and a lambda-Lipschitz f give a (lambda kappa)-Lipschitz layer. *)
Theorem layer_lipschitz (d : nat) (D : R -> Prop) (lambda kappa : R) (f : R -> R) (W : nat -> vec) (x y : vec) :
  0 <= lambda -> 0 <= kappa -> lipschitz_on D lambda f ->
  (forall i, (i < d)%nat -> total d (fun j => Rabs (W i j)) <= kappa) ->
  (forall i, (i < d)%nat -> D (dot d (W i) x) /\ D (dot d (W i) y)) ->
  dist d (layer d f W x) (layer d f W y) <= lambda * kappa * dist d x y.
Proof.
  intros Hl Hk Hf HW HD. pose proof (dist_nonneg d x y) as Hd.
  apply norm_le; [apply Rmult_le_pos; [nra | exact Hd]|]. intros i Hi. unfold layer.
  destruct (HD i Hi) as [Dx Dy]. eapply Rle_trans; [now apply Hf|].
  rewrite Rmult_assoc. apply Rmult_le_compat_l; [exact Hl|]. rewrite dot_diff.
  eapply Rle_trans; [apply total_abs|].
  apply Rle_trans with (total d (fun j => dist d x y * Rabs (W i j))).
  - apply total_le. intros j Hj. rewrite Rabs_mult, Rmult_comm.
    apply Rmult_le_compat_r; [apply Rabs_pos | exact (norm_coord d (fun i => x i - y i) j Hj)].
  - rewrite total_scale, (Rmult_comm kappa). apply Rmult_le_compat_l; [exact Hd | now apply HW].
Qed.

(** Step 2, the paper's lemma: rounding a row by at most s/2 moves an activation by at most lambda (s/2) d B. *)
Theorem activation_perturbation (d : nat) (D : R -> Prop) (lambda s B : R) (f : R -> R) (w q h : vec) :
  0 <= lambda -> 0 <= s -> lipschitz_on D lambda f -> D (dot d w h) -> D (dot d q h) ->
  (forall j, (j < d)%nat -> Rabs (w j - q j) <= s / 2) -> (forall j, (j < d)%nat -> Rabs (h j) <= B) ->
  Rabs (f (dot d w h) - f (dot d q h)) <= lambda * (s / 2) * INR d * B.
Proof.
  intros Hl Hs Hf Dw Dq Hq Hh. eapply Rle_trans; [now apply Hf|].
  replace (lambda * (s / 2) * INR d * B) with (lambda * (INR d * (s / 2 * B))) by ring.
  apply Rmult_le_compat_l; [exact Hl|]. rewrite <- total_const.
  replace (dot d w h - dot d q h) with (total d (fun j => h j * (w j - q j))).
  - eapply Rle_trans; [apply total_abs|]. apply total_le. intros j Hj. rewrite Rabs_mult, Rmult_comm.
    apply Rmult_le_compat; try apply Rabs_pos; [now apply Hq | now apply Hh].
  - rewrite <- dot_diff. unfold dot. f_equal; apply total_ext; intros; ring.
Qed.

Section MatchedPrecision.
  (** A network of [L] entry-wise layers of width [d], an iterator family [F n] for [f], a count per layer. *)
  Variables (d L : nat) (W : nat -> nat -> vec) (h0 : vec).
  Variables (f : R -> R) (F : nat -> R -> R) (D : R -> Prop) (counts : nat -> nat).
  Variables lambda kappa B M r lo width xi : R.
  Variable loss : vec -> R.

  Hypothesis d_pos : (0 < d)%nat.
  Hypothesis lambda_pos : 0 < lambda.
  Hypothesis kappa_nonneg : 0 <= kappa.
  Hypothesis B_pos : 0 < B.
  Hypothesis M_pos : 0 < M.
  Hypothesis r_range : 0 < r < 1.
  Hypothesis width_pos : 0 < width.
  Hypothesis xi_nonneg : 0 <= xi.

  (** f is lambda-Lipschitz on D, and there the n-step iterator meets its budget. *)
  Hypothesis f_lipschitz : lipschitz_on D lambda f.
  Hypothesis F_converges : forall n x, D x -> Rabs (F n x - f x) <= budget M r n.
  Hypothesis rows : forall l i, (l < L)%nat -> (i < d)%nat -> total d (fun j => Rabs (W l i j)) <= kappa.
  Hypothesis no_overload : forall l i j, (l < L)%nat -> (i < d)%nat -> (j < d)%nat -> lo <= W l i j <= lo + width.
  Hypothesis loss_lipschitz : forall x y, Rabs (loss x - loss y) <= xi * dist d x y.

  (** The matched bit width of layer l, and the three networks. *)
  Definition width_bits (l : nat) : nat := matched_width (lambda * INR d * B * width) M r (counts l).
  Definition rounded (l i : nat) : vec := fun j => quantize lo width (width_bits l) (W l i j).

  Definition exact (l : nat) : vec -> vec := layer d f (W l).
  Definition heat (l : nat) : vec -> vec := layer d (F (counts l)) (W l).
  Definition quantized (l : nat) : vec -> vec := layer d f (rounded l).

  (** Pre-activations stay in D; the quantized network's activations are bounded by B. *)
  Hypothesis exact_inside : forall l i, (l < L)%nat -> (i < d)%nat -> D (dot d (W l i) (run exact h0 l)).
  Hypothesis heat_inside : forall l i, (l < L)%nat -> (i < d)%nat -> D (dot d (W l i) (run heat h0 l)).
  Hypothesis quantized_inside : forall l i, (l < L)%nat -> (i < d)%nat ->
    D (dot d (W l i) (run quantized h0 l)) /\ D (dot d (rounded l i) (run quantized h0 l)).
  Hypothesis quantized_bounded : forall l j, (l < L)%nat -> (j < d)%nat -> Rabs (run quantized h0 l j) <= B.

  Local Notation rho := (lambda * kappa).
  Local Notation inside := (fun l x => forall i, (i < d)%nat -> D (dot d (W l i) x)).
  Local Notation site_budget := (fun l => budget M r (counts l)).

  Local Lemma INR_d_pos : 0 < INR d.
  Proof. now apply lt_0_INR. Qed.

  Local Lemma site_budget_nonneg (l : nat) : 0 <= site_budget l.
  Proof. apply Rlt_le, budget_positive; lra. Qed.

  (** The rounding error of a layer is within the budget of its iterator. *)
  Lemma rounding_within_budget (l : nat) : (l < L)%nat ->
    lambda * (step width (INR (width_bits l)) / 2) * INR d * B <= budget M r (counts l).
  Proof.
    intros _. pose proof INR_d_pos as Hd. unfold width_bits.
    assert (Hw : 0 < lambda * INR d * B * width) by (repeat apply Rmult_lt_0_compat; lra).
    eapply Rle_trans; [right | exact (matched_width_meets_budget _ M r Hw M_pos r_range (counts l))].
    unfold step, Rdiv. ring.
  Qed.

  Local Lemma blocks_lipschitz (l : nat) (x y : vec) : (l < L)%nat -> inside l x -> inside l y ->
    dist d (exact l x) (exact l y) <= rho * dist d x y.
  Proof.
    intros Hl Hx Hy. apply layer_lipschitz with (D := D); try lra; [exact f_lipschitz | |].
    - intros i Hi. now apply rows.
    - intros i Hi. split; [now apply Hx | now apply Hy].
  Qed.

  Local Lemma heat_perturbed : perturbed (fun _ => d) L exact h0 inside site_budget heat.
  Proof.
    intros l Hl. split; [intros i Hi; now apply heat_inside|].
    apply norm_le; [apply site_budget_nonneg|]. intros i Hi. apply F_converges. now apply heat_inside.
  Qed.

  Local Lemma quantized_perturbed : perturbed (fun _ => d) L exact h0 inside site_budget quantized.
  Proof.
    intros l Hl. split; [intros i Hi; now apply quantized_inside|].
    apply norm_le; [apply site_budget_nonneg|]. intros i Hi. rewrite Rabs_minus_sym.
    eapply Rle_trans; [|now apply rounding_within_budget]. pose proof INR_d_pos as Hd.
    assert (Hw : 0 < lambda * INR d * B * width) by (repeat apply Rmult_lt_0_compat; lra).
    destruct (matched_width_bounds _ M r Hw M_pos r_range (counts l)) as [Hb _]. fold (width_bits l) in Hb.
    destruct (quantized_inside l i Hl Hi) as [D1 D2].
    apply activation_perturbation with (D := D); try lra; try assumption.
    - apply Rlt_le, step_pos; [lra|]. apply lt_0_INR. lia.
    - intros j Hj. apply quantizer_error; [lra | exact Hb | now apply no_overload].
    - intros j Hj. now apply quantized_bounded.
  Qed.

  Local Lemma rho_nonneg (l : nat) : (l < L)%nat -> 0 <= rho.
  Proof. intros _. nra. Qed.

  (** The approximated network against the exact one: xi sum_l rho^(L-1-l) M r^(2^(n_l)). *)
  Theorem fidelity :
    Rabs (loss (run heat h0 L) - loss (run exact h0 L))
    <= xi * total L (fun l => rho ^ (L - S l) * budget M r (counts l)).
  Proof.
    rewrite <- accumulated_const_rho.
    apply block_fidelity with (width := fun _ => d) (D := inside); try assumption.
    - exact rho_nonneg.
    - exact blocks_lipschitz.
    - intros l Hl i Hi. now apply exact_inside.
    - exact heat_perturbed.
  Qed.

  (** Against a mixed-precision network with b*(n_l) bits in layer l: twice that. *)
  Theorem mixed_precision :
    Rabs (loss (run heat h0 L) - loss (run quantized h0 L))
    <= 2 * xi * total L (fun l => rho ^ (L - S l) * budget M r (counts l)).
  Proof.
    rewrite <- accumulated_const_rho.
    apply block_matched_precision with (width := fun _ => d) (exact := exact) (D := inside); try assumption.
    - exact rho_nonneg.
    - exact blocks_lipschitz.
    - intros l Hl i Hi. now apply exact_inside.
    - exact heat_perturbed.
    - exact quantized_perturbed.
  Qed.

  (** Theorem 2: one count n in every layer. *)
  Theorem matched_precision (n : nat) : (forall l, (l < L)%nat -> counts l = n) ->
    Rabs (loss (run heat h0 L) - loss (run quantized h0 L))
    <= 2 * xi * (M * r ^ (2 ^ n)) * total L (fun j => rho ^ j).
  Proof.
    intros Hn. eapply Rle_trans; [exact mixed_precision|]. right.
    rewrite (total_ext L _ (fun l => rho ^ (L - S l) * budget M r n)) by (intros l Hl; now rewrite Hn).
    rewrite <- accumulated_const_rho, accumulated_const. unfold budget. ring.
  Qed.
End MatchedPrecision.

(** The bound of Theorem 2 vanishes as the count grows. *)
Theorem matched_precision_vanishes (xi M r rho : R) (L : nat) : 0 < r < 1 ->
  is_lim_seq (fun n => 2 * xi * (M * r ^ (2 ^ n)) * total L (fun j => rho ^ j)) 0.
Proof.
  intros Hr. pose (c := 2 * xi * total L (fun j => rho ^ j)).
  apply is_lim_seq_ext with (fun n => c * budget M r n); [intros n; unfold c, budget; ring|].
  replace (Finite 0) with (Rbar_mult c 0) by (cbn; f_equal; ring).
  apply is_lim_seq_scal_l, budget_vanishes, Hr.
Qed.

(** * Two consequences for a circuit *)

(** A logit margin above twice the activation error keeps the top choice. *)
Theorem margin_keeps_top1 (d : nat) (x y : vec) (k i : nat) (e : R) : (k < d)%nat -> (i < d)%nat ->
  dist d x y <= e -> 2 * e < x k - x i -> y i < y k.
Proof.
  intros Hk Hi He Hm.
  pose proof (norm_coord d (fun i => x i - y i) k Hk) as Ek. pose proof (norm_coord d (fun i => x i - y i) i Hi) as Ei.
  fold (dist d x y) in Ek, Ei. cbn beta in Ek, Ei. apply Rabs_le_between in Ek, Ei. lra.
Qed.

(** A norm block whose inverse root has relative error at most e errs by e |gamma (x - mu)| / sqrt v. *)
Theorem norm_block_error (gamma beta x mu v y e : R) : 0 < v -> Rabs (1 - y * sqrt v) <= e ->
  Rabs ((gamma * (x - mu) * y + beta) - (gamma * (x - mu) / sqrt v + beta))
  <= e * (Rabs (gamma * (x - mu)) / sqrt v).
Proof.
  intros Hv He. apply sqrt_lt_R0 in Hv as Hs.
  replace (gamma * (x - mu) * y + beta - (gamma * (x - mu) / sqrt v + beta))
    with (- (1 - y * sqrt v) * (gamma * (x - mu) / sqrt v)) by (field; lra).
  rewrite Rabs_mult, Rabs_Ropp. unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ _))
    by (apply Rlt_le, Rinv_0_lt_compat, Hs).
  apply Rmult_le_compat_r; [|exact He].
  apply Rmult_le_pos; [apply Rabs_pos | apply Rlt_le, Rinv_0_lt_compat, Hs].
Qed.
