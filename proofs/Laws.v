(** Laws of attention over the real numbers: row sums of softmax, permutations, causal masks. *)
From Coq Require Import Reals List Lra Lia Permutation Arith.
From attnspec Require Import Sums.
Import ListNotations.
Open Scope R_scope.

(** A matrix is a function of its row and its column. Keys are numbered; A lists the attendable ones of a query. *)
Definition matrix := nat -> nat -> R.

Definition score (d : nat) (q : nat -> R) (k : matrix) (j : nat) : R :=
  sum (fun c => q c * k j c) (seq 0 d) / sqrt (INR d).

Definition softmax (e : nat -> R) (A : list nat) (j : nat) : R := exp (e j) / sum (fun i => exp (e i)) A.

(** o_c = Σ_{j ∈ A} α_j v_jc, with the softmax α of the scores of A. *)
Definition attention (d : nat) (q : nat -> R) (k v : matrix) (A : list nat) (c : nat) : R :=
  sum (fun j => softmax (score d q k) A j * v j c) A.

(** y_i = attention of row x_i to all n rows of x. *)
Definition self_attention (d n : nat) (x : matrix) (i c : nat) : R := attention d (x i) x x (seq 0 n) c.

Lemma sum_exp_pos (e : nat -> R) A : A <> [] -> 0 < sum (fun i => exp (e i)) A.
Proof. intros N. apply sum_pos; auto. intros. apply exp_pos. Qed.

(** The weights of a row with an attendable key are positive and sum to 1. *)
Theorem softmax_row_sum (e : nat -> R) (A : list nat) : A <> [] ->
  (forall j, 0 < softmax e A j) /\ sum (softmax e A) A = 1.
Proof.
  intros N. pose proof (sum_exp_pos e A N) as P. split.
  - intros j. apply Rdiv_lt_0_compat; auto. apply exp_pos.
  - unfold softmax. rewrite sum_div. field. lra.
Qed.

Lemma attention_ext d q q' k k' v v' A c :
  (forall i, (i < d)%nat -> q i = q' i) ->
  (forall j i, In j A -> (i < d)%nat -> k j i = k' j i) ->
  (forall j, In j A -> v j c = v' j c) ->
  attention d q k v A c = attention d q' k' v' A c.
Proof.
  intros Q K V.
  assert (E : forall j, In j A -> score d q k j = score d q' k' j).
  { intros j I. unfold score. f_equal. apply sum_ext. intros i H. apply in_seq in H.
    rewrite Q, (K j i); auto; lia. }
  unfold attention. apply sum_ext. intros j I. unfold softmax. rewrite V, (E j) by auto. f_equal. f_equal.
  apply sum_ext. intros i Ii. rewrite E; auto.
Qed.

(** The order of the keys, with their values and their mask, does not matter: s renumbers them. *)
Theorem permutation_equivariance_of_keys d q (k v : matrix) (s : nat -> nat) A A' c :
  Permutation (map s A') A ->
  attention d q (fun j => k (s j)) (fun j => v (s j)) A' c = attention d q k v A c.
Proof.
  intros P. unfold attention. rewrite <- (sum_permutation _ _ _ P), sum_map. apply sum_ext. intros j _. f_equal.
  unfold softmax. rewrite <- (sum_permutation _ _ _ P), sum_map. reflexivity.
Qed.

(** f(PX) = P f(X): permuting the rows of X permutes the rows of the result. *)
Theorem permutation_equivariance d n (x : matrix) (s : nat -> nat) i c :
  Permutation (map s (seq 0 n)) (seq 0 n) ->
  self_attention d n (fun j => x (s j)) i c = self_attention d n x (s i) c.
Proof.
  intros P. unfold self_attention.
  apply (permutation_equivariance_of_keys d (x (s i)) x x s (seq 0 n) (seq 0 n) c P).
Qed.

(** Under a causal mask query i attends to the keys 0 … i, and no later key or value affects its result. *)
Theorem causal_prefix d (q k v k' v' : matrix) i c :
  (forall j a, (j <= i)%nat -> k j a = k' j a) -> (forall j a, (j <= i)%nat -> v j a = v' j a) ->
  attention d (q i) k v (seq 0 (S i)) c = attention d (q i) k' v' (seq 0 (S i)) c.
Proof.
  intros K V. apply attention_ext; auto.
  - intros j a I _. apply in_seq in I. apply K. lia.
  - intros j I. apply in_seq in I. apply V. lia.
Qed.
