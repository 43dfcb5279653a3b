(* SPDX-License-Identifier: Apache-2.0 *)
(** Finite sums of reals: the few facts the other files share.

    [total n f] is f 0 + ... + f (n-1). *)

From Coq Require Import Reals Lra Lia.
Open Scope R_scope.

Fixpoint total (n : nat) (f : nat -> R) : R :=
  match n with
  | O => 0
  | S m => total m f + f m
  end.

Lemma total_ext (n : nat) (f g : nat -> R) :
  (forall i, (i < n)%nat -> f i = g i) -> total n f = total n g.
Proof.
  induction n as [|n IH]; intros H; cbn; [reflexivity|].
  rewrite IH by (intros; apply H; lia). rewrite H by lia. reflexivity.
Qed.

Lemma total_le (n : nat) (f g : nat -> R) :
  (forall i, (i < n)%nat -> f i <= g i) -> total n f <= total n g.
Proof.
  induction n as [|n IH]; intros H; cbn; [lra|].
  specialize (H n ltac:(lia)) as Hn.
  assert (total n f <= total n g) by (apply IH; intros; apply H; lia). lra.
Qed.

Lemma total_nonneg (n : nat) (f : nat -> R) :
  (forall i, (i < n)%nat -> 0 <= f i) -> 0 <= total n f.
Proof.
  induction n as [|n IH]; intros H; cbn; [lra|].
  specialize (H n ltac:(lia)) as Hn.
  assert (0 <= total n f) by (apply IH; intros; apply H; lia). lra.
Qed.

Lemma total_pos (n : nat) (f : nat -> R) :
  (0 < n)%nat -> (forall i, (i < n)%nat -> 0 < f i) -> 0 < total n f.
Proof.
  intros Hn H. destruct n as [|n]; [lia|]. cbn.
  assert (0 <= total n f) by (apply total_nonneg; intros; apply Rlt_le, H; lia).
  specialize (H n ltac:(lia)). lra.
Qed.

(** One term of a non-negative sum is at most the sum. *)
Lemma total_term (n : nat) (f : nat -> R) (i : nat) :
  (i < n)%nat -> (forall j, (j < n)%nat -> 0 <= f j) -> f i <= total n f.
Proof.
  induction n as [|n IH]; intros Hi H; [lia|]. cbn.
  specialize (H n ltac:(lia)) as Hn.
  destruct (PeanoNat.Nat.eq_dec i n) as [->|].
  - assert (0 <= total n f) by (apply total_nonneg; intros; apply H; lia). lra.
  - assert (f i <= total n f) by (apply IH; [lia | intros; apply H; lia]). lra.
Qed.

Lemma total_plus (n : nat) (f g : nat -> R) :
  total n (fun i => f i + g i) = total n f + total n g.
Proof. induction n as [|n IH]; cbn; [|rewrite IH]; ring. Qed.

Lemma total_scale (n : nat) (c : R) (f : nat -> R) :
  total n (fun i => c * f i) = c * total n f.
Proof. induction n as [|n IH]; cbn; [|rewrite IH]; ring. Qed.

Lemma total_const (n : nat) (c : R) : total n (fun _ => c) = INR n * c.
Proof. induction n as [|n IH]; [cbn; ring|]. cbn [total]. rewrite IH, S_INR. ring. Qed.

Lemma total_abs (n : nat) (f : nat -> R) :
  Rabs (total n f) <= total n (fun i => Rabs (f i)).
Proof.
  induction n as [|n IH]; cbn; [rewrite Rabs_R0; lra|].
  eapply Rle_trans; [apply Rabs_triang | lra].
Qed.

(** The first term split off: f 0 + (f 1 + ... + f n). *)
Lemma total_head (n : nat) (f : nat -> R) :
  total (S n) f = f 0%nat + total n (fun i => f (S i)).
Proof. induction n as [|n IH]; [cbn; ring|]. cbn [total] in *. rewrite IH. ring. Qed.
