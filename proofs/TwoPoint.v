(** The two-point design of the laws [moments.*]: on its finite sample the formulas of mean and variance are exact. *)
From Coq Require Import Reals List Lra Lia Arith Bool NArith MSetPositive.
From attnspec Require Import Sums Moments.
Import ListNotations.
Open Scope R_scope.

(** [two_point_design] of the reference: each bit doubles the sample, and its second half negates variables. *)
Definition sign (b : bool) : R := if b then -1 else 1.

Fixpoint samples (bits : list (N -> bool)) : list (N -> R) :=
  match bits with
  | [] => [fun _ => 1]
  | b :: rest => samples rest ++ map (fun s x => s x * sign (b x)) (samples rest)
  end.

(** Primitive polynomials over GF(2), by degree r from 1: [_PRIMITIVE] of the reference. *)
Definition primitive : list N := [3; 7; 11; 19; 37; 67; 131; 285]%N.

Definition polynomial (r : nat) : N := nth (r - 1) primitive 0%N.

(** The product of a and b in GF(2^r), elements as bits of their coefficients. *)
Fixpoint product (r bits : nat) (a b : N) : N :=
  match bits with
  | O => 0
  | S bits =>
      let twice := N.double a in
      let reduced := if N.testbit twice (N.of_nat r) then N.lxor twice (polynomial r) else twice in
      N.lxor (if N.odd b then a else 0) (product r bits reduced (N.div2 b))
  end%N.

(** The column (x, x³) of variable x as one number. *)
Definition code (r : nat) (x : N) : N := (x + N.shiftl (product r r (product r r x x) x) (N.of_nat r))%N.

Definition bits (r : nat) : list (N -> bool) := map (fun i x => N.testbit (code r x) (N.of_nat i)) (seq 0 (2 * r)).

Definition design (r : nat) : list (N -> R) := samples (bits r).

Definition uniform {W} (l : list W) : W -> R := fun _ => / INR (length l).

Definition degrees : list nat := [1; 2; 3; 4; 5; 6; 7; 8]%nat.

(** The variables of the design of degree r are 1 … 2^r − 1. *)
Definition variable (r : nat) (x : N) : Prop := (1 <= x)%N /\ (x < 2 ^ N.of_nat r)%N.

(** Means of products of signs. *)

(** The product of the signs of the variables xs in sample s. *)
Definition signs_of (xs : list N) (s : N -> R) : R := fold_right (fun x y => s x * y) 1 xs.

Lemma signs_of_times b xs s : signs_of xs (fun x => s x * sign (b x)) = signs_of xs s * sign (fold_right xorb false (map b xs)).
Proof.
  induction xs as [|x xs IH]; simpl; [ring|]. rewrite IH. destruct (b x), (fold_right xorb false (map b xs)); simpl; ring.
Qed.

Lemma samples_times b rest xs :
  sum (signs_of xs) (samples (b :: rest)) = (1 + sign (fold_right xorb false (map b xs))) * sum (signs_of xs) (samples rest).
Proof.
  simpl. rewrite sum_app, sum_map.
  rewrite (sum_ext (fun s => signs_of xs (fun x => s x * sign (b x))) (fun s => signs_of xs s * sign (fold_right xorb false (map b xs)))).
  - rewrite sum_scal_r. ring.
  - intros. apply signs_of_times.
Qed.

Lemma odd_bit_cancels bits b xs : In b bits -> fold_right xorb false (map b xs) = true ->
  sum (signs_of xs) (samples bits) = 0.
Proof.
  induction bits as [|b' rest IH]; [simpl; tauto|]. intros [->|I] O; rewrite samples_times.
  - rewrite O. simpl. ring.
  - rewrite IH by auto. ring.
Qed.

Lemma samples_are_signs bits s : In s (samples bits) -> forall x, s x * s x = 1.
Proof.
  revert s. induction bits as [|b rest IH]; simpl; intros s I x.
  - destruct I as [<-|[]]. ring.
  - apply in_app_or in I. destruct I as [I|I]; [auto|]. apply in_map_iff in I. destruct I as [t [<- I]].
    specialize (IH t I x). destruct (b x); simpl; nra.
Qed.

Lemma samples_nonempty bits : (0 < length (samples bits))%nat.
Proof. induction bits; simpl; [lia|]. rewrite app_length. lia. Qed.

Lemma uniform_total bits : sum (uniform (samples bits)) (samples bits) = 1.
Proof.
  unfold uniform. rewrite sum_const. pose proof (lt_0_INR _ (samples_nonempty bits)). field. lra.
Qed.

(** Any four columns are linearly independent. Coq computes this for each degree. *)

Definition codes (r : nat) : list N := map (code r) (map N.of_nat (seq 1 (2 ^ r - 1))).

(** The XOR of every pair of l. *)
Fixpoint pairs (l : list N) : list N :=
  match l with [] => [] | x :: t => map (N.lxor x) t ++ pairs t end.

(** The numbers of l differ from each other and from those in [seen]. *)
Fixpoint fresh (l : list N) (seen : PositiveSet.t) : bool :=
  match l with
  | [] => true
  | x :: t => negb (PositiveSet.mem (N.succ_pos x) seen) && fresh t (PositiveSet.add (N.succ_pos x) seen)
  end.

Definition independent_columns (r : nat) : bool := fresh (0%N :: codes r ++ pairs (codes r)) PositiveSet.empty.

Lemma columns_are_independent : forallb independent_columns degrees = true.
Proof. vm_compute. reflexivity. Qed.

Lemma codes_are_short : forallb (fun r => forallb (fun c => N.ltb c (2 ^ N.of_nat (2 * r))) (codes r)) degrees = true.
Proof. vm_compute. reflexivity. Qed.

Lemma fresh_correct l seen : fresh l seen = true ->
  NoDup l /\ forall x, In x l -> PositiveSet.mem (N.succ_pos x) seen = false.
Proof.
  revert seen. induction l as [|x t IH]; intros seen H; simpl in *.
  - split; [constructor|tauto].
  - apply andb_prop in H. destruct H as [F T]. apply IH in T. destruct T as [D S].
    apply negb_true_iff in F. split.
    + constructor; auto. intros I. specialize (S _ I).
      assert (E : PositiveSet.mem (N.succ_pos x) (PositiveSet.add (N.succ_pos x) seen) = true)
        by (apply PositiveSet.mem_spec, PositiveSet.add_spec; auto). congruence.
    + intros y [->|I]; auto. specialize (S _ I).
      destruct (PositiveSet.mem (N.succ_pos y) seen) eqn:M; auto.
      assert (E : PositiveSet.mem (N.succ_pos y) (PositiveSet.add (N.succ_pos x) seen) = true)
        by (apply PositiveSet.mem_spec, PositiveSet.add_spec; right; apply PositiveSet.mem_spec; auto). congruence.
Qed.

Lemma NoDup_app_disjoint {A} (l l' : list A) x : NoDup (l ++ l') -> In x l -> In x l' -> False.
Proof.
  induction l as [|y l IH]; simpl; [tauto|]. intros D [->|I] I'; inversion D; subst.
  - apply H1, in_or_app. auto.
  - auto.
Qed.

Lemma NoDup_app_l {A} (l l' : list A) : NoDup (l ++ l') -> NoDup l.
Proof.
  induction l as [|y l IH]; intros D; [constructor|]. inversion D; subst. constructor; auto.
  intros I. apply H1, in_or_app. auto.
Qed.

Lemma NoDup_app_r {A} (l l' : list A) : NoDup (l ++ l') -> NoDup l'.
Proof. induction l as [|y l IH]; simpl; auto. intros D. inversion D. auto. Qed.

Lemma in_pairs l a b : In a l -> In b l -> a <> b -> In (N.lxor a b) (pairs l).
Proof.
  induction l as [|x t IH]; simpl; [tauto|]. intros [->|A] [->|B] D; try congruence; apply in_or_app.
  - left. apply in_map. auto.
  - left. rewrite N.lxor_comm. apply in_map. auto.
  - right. auto.
Qed.

Lemma lxor_cancel a b c : N.lxor a b = N.lxor a c -> b = c.
Proof.
  intros H. apply (f_equal (N.lxor a)) in H. rewrite <- !N.lxor_assoc, N.lxor_nilpotent, !N.lxor_0_l in H. exact H.
Qed.

Lemma distinct_pairs l a b c d : NoDup (pairs l) -> In a l -> In b l -> In c l -> In d l ->
  a <> b -> a <> c -> a <> d -> b <> c -> b <> d -> c <> d -> N.lxor a b <> N.lxor c d.
Proof.
  revert a b c d. induction l as [|x t IH]; [simpl; tauto|]. intros a b c d D A B C E ab ac ad bc bd cd X.
  change (pairs (x :: t)) with (map (N.lxor x) t ++ pairs t) in D.
  assert (T : forall y z w, In y t -> In z t -> In w t -> z <> w -> N.lxor x y = N.lxor z w -> False).
  { intros y z w Y Z V N Q. apply (NoDup_app_disjoint _ _ (N.lxor x y) D); [apply in_map; auto|].
    rewrite Q. apply in_pairs; auto. }
  destruct A as [->|A], B as [->|B], C as [->|C], E as [->|E]; try congruence.
  - apply (T b c d); auto.
  - rewrite N.lxor_comm in X. apply (T a c d); auto.
  - symmetry in X. apply (T d a b); auto.
  - symmetry in X. rewrite N.lxor_comm in X. apply (T c a b); auto.
  - apply (IH a b c d); auto. apply (NoDup_app_r _ _ D).
Qed.

Section Design.
Variable r : nat.
Hypothesis degree : In r degrees.

Let p := uniform (design r).
Let E := mean p (design r).

Lemma columns : ~ In 0%N (codes r) /\ NoDup (codes r) /\ NoDup (pairs (codes r)) /\
  (forall x, In x (codes r) -> ~ In x (pairs (codes r))).
Proof.
  pose proof columns_are_independent as H. rewrite forallb_forall in H. specialize (H r degree).
  apply fresh_correct in H. destruct H as [D _]. inversion D; subst. split; [|split; [|split]].
  - intros I. apply H1, in_or_app. auto.
  - apply (NoDup_app_l _ _ H2).
  - apply (NoDup_app_r _ _ H2).
  - intros x I J. apply (NoDup_app_disjoint _ _ x H2 I J).
Qed.

Lemma in_codes x : variable r x -> In (code r x) (codes r).
Proof.
  intros [L U]. unfold codes. apply in_map. apply in_map_iff. exists (N.to_nat x). split; [apply N2Nat.id|].
  apply in_seq. assert (2 ^ r = N.to_nat (2 ^ N.of_nat r))%nat.
  { rewrite N2Nat.inj_pow, Nat2N.id. reflexivity. }
  pose proof (Nat.pow_nonzero 2 r). lia.
Qed.

Lemma code_short x : variable r x -> (code r x < 2 ^ N.of_nat (2 * r))%N.
Proof.
  intros V. pose proof codes_are_short as H. rewrite forallb_forall in H. specialize (H r degree).
  rewrite forallb_forall in H. apply N.ltb_lt, H, in_codes, V.
Qed.

Lemma nodup_nth (l : list N) i j : NoDup l -> (i < length l)%nat -> (j < length l)%nat -> nth i l 0%N = nth j l 0%N -> i = j.
Proof. intros D I J. apply (proj1 (NoDup_nth l 0%N) D); auto. Qed.

Lemma code_injective x y : variable r x -> variable r y -> code r x = code r y -> x = y.
Proof.
  intros X Y H. destruct columns as [_ [D _]].
  assert (P : (2 ^ r = N.to_nat (2 ^ N.of_nat r))%nat) by (rewrite N2Nat.inj_pow, Nat2N.id; reflexivity).
  unfold codes in D. rewrite map_map in D.
  assert (G : forall z, variable r z -> nth (N.to_nat z - 1) (map (fun i => code r (N.of_nat i)) (seq 1 (2 ^ r - 1))) 0%N = code r z /\
    (N.to_nat z - 1 < length (map (fun i => code r (N.of_nat i)) (seq 1 (2 ^ r - 1))))%nat).
  { intros z [L U]. rewrite map_length, seq_length. split; [|lia].
    rewrite (nth_indep _ 0%N (code r (N.of_nat 0))) by (rewrite map_length, seq_length; lia).
    rewrite (map_nth (fun i => code r (N.of_nat i))), seq_nth by lia. f_equal. lia. }
  destruct (G x X) as [Gx Lx], (G y Y) as [Gy Ly].
  assert (N.to_nat x - 1 = N.to_nat y - 1)%nat by (apply (nodup_nth _ _ _ D Lx Ly); congruence).
  destruct X, Y. lia.
Qed.

Definition xor_all (xs : list N) : N := fold_right N.lxor 0%N (map (code r) xs).

Lemma parity i xs : fold_right xorb false (map (fun x => N.testbit (code r x) i) xs) = N.testbit (xor_all xs) i.
Proof.
  unfold xor_all. induction xs as [|x xs IH]; cbn [map fold_right]; [rewrite N.bits_0; reflexivity|].
  rewrite N.lxor_spec, <- IH. reflexivity.
Qed.

Lemma xor_all_short xs i : (forall x, In x xs -> variable r x) -> (N.of_nat (2 * r) <= i)%N ->
  N.testbit (xor_all xs) i = false.
Proof.
  intros V I. unfold xor_all. induction xs as [|x xs IH]; cbn [map fold_right]; [rewrite N.bits_0; reflexivity|].
  rewrite N.lxor_spec, IH by (intros; apply V; right; auto). rewrite xorb_false_r.
  assert (C : (code r x < 2 ^ N.of_nat (2 * r))%N) by (apply code_short, V; left; auto).
  destruct (N.eq_dec (code r x) 0) as [->|N0]; [rewrite N.bits_0; reflexivity|].
  apply N.bits_above_log2. apply N.lt_le_trans with (N.of_nat (2 * r)); auto.
  apply N.log2_lt_pow2; lia.
Qed.

Lemma mean_of_signs xs : (forall x, In x xs -> variable r x) -> xor_all xs <> 0%N -> E (signs_of xs) = 0.
Proof.
  intros V N0.
  assert (X : exists i, (i < 2 * r)%nat /\ N.testbit (xor_all xs) (N.of_nat i) = true).
  { exists (N.to_nat (N.log2 (xor_all xs))). rewrite N2Nat.id. split; [|apply N.bit_log2; auto].
    destruct (Nat.lt_ge_cases (N.to_nat (N.log2 (xor_all xs))) (2 * r)) as [L|G]; auto.
    assert (F : N.testbit (xor_all xs) (N.log2 (xor_all xs)) = false) by (apply xor_all_short; auto; lia).
    rewrite N.bit_log2 in F by auto. discriminate. }
  destruct X as [i [L T]]. unfold E, mean, p, uniform. rewrite sum_scal. unfold design.
  rewrite (odd_bit_cancels (bits r) (fun x => N.testbit (code r x) (N.of_nat i)) xs); [ring| |].
  - apply in_map_iff. exists i. split; auto. apply in_seq. lia.
  - rewrite parity. exact T.
Qed.

Ltac distinct_codes := let h := fresh in intros h; apply code_injective in h; auto; congruence.

Lemma mean_1 x : variable r x -> E (fun s => s x) = 0.
Proof.
  intros X. rewrite <- (mean_of_signs [x]).
  - apply mean_ext. intros. simpl. ring.
  - intros y [->|[]]. auto.
  - unfold xor_all. simpl. rewrite N.lxor_0_r. intros H. destruct columns as [Z _]. apply Z. rewrite <- H. apply in_codes, X.
Qed.

Lemma mean_2 x y : variable r x -> variable r y -> x <> y -> E (fun s => s x * s y) = 0.
Proof.
  intros X Y D. rewrite <- (mean_of_signs [x; y]).
  - apply mean_ext. intros. simpl. ring.
  - intros z [->|[->|[]]]; auto.
  - unfold xor_all. simpl. rewrite N.lxor_0_r. intros H. apply N.lxor_eq in H. revert H. distinct_codes.
Qed.

Lemma mean_3 x y z : variable r x -> variable r y -> variable r z -> x <> y -> x <> z -> y <> z ->
  E (fun s => s x * s y * s z) = 0.
Proof.
  intros X Y Z xy xz yz. rewrite <- (mean_of_signs [x; y; z]).
  - apply mean_ext. intros. simpl. ring.
  - intros w [->|[->|[->|[]]]]; auto.
  - unfold xor_all. simpl. rewrite N.lxor_0_r. intros H. apply N.lxor_eq in H.
    destruct columns as [_ [_ [_ P]]]. apply (P (code r x)); [apply in_codes, X|]. rewrite H.
    apply in_pairs; try apply in_codes; auto. distinct_codes.
Qed.

Lemma mean_4 x y z w : variable r x -> variable r y -> variable r z -> variable r w ->
  x <> y -> x <> z -> x <> w -> y <> z -> y <> w -> z <> w -> E (fun s => s x * s y * (s z * s w)) = 0.
Proof.
  intros X Y Z V xy xz xw yz yw zw. rewrite <- (mean_of_signs [x; y; z; w]).
  - apply mean_ext. intros. simpl. ring.
  - intros t [->|[->|[->|[->|[]]]]]; auto.
  - unfold xor_all. simpl. rewrite N.lxor_0_r. rewrite <- N.lxor_assoc. intros H. apply N.lxor_eq in H. revert H.
    destruct columns as [_ [_ [P _]]]. apply (distinct_pairs (codes r)); auto using in_codes; distinct_codes.
Qed.

Lemma square_1 x (f : (N -> R) -> R) : E (fun s => s x * s x * f s) = E f.
Proof.
  unfold E, mean. apply sum_ext. intros s I. rewrite (samples_are_signs (bits r) s I). ring.
Qed.

Variables (d : nat) (mu : nat -> R) (sigma : R).
Hypothesis fits : (2 * N.of_nat d < 2 ^ N.of_nat r)%N.

(** Query coordinate c is variable c + 1, key coordinate c is variable d + c + 1. *)
Definition query (c : nat) (s : N -> R) : R := mu c + sigma * s (N.of_nat (c + 1)).
Definition key (c : nat) (s : N -> R) : R := mu c + sigma * s (N.of_nat (d + c + 1)).

Let total : sum p (design r) = 1 := uniform_total (bits r).

Lemma linear (a b c e : R) (x y z : (N -> R) -> R) :
  E (fun s => a + b * x s + c * y s + e * z s) = a + b * E x + c * E y + e * E z.
Proof.
  unfold E. rewrite !mean_plus, !mean_scal, mean_const by exact total. reflexivity.
Qed.

Lemma moments_of_side (v : nat -> N) (x : nat -> (N -> R) -> R) :
  (forall c s, x c s = mu c + sigma * s (v c)) ->
  (forall c, (c < d)%nat -> variable r (v c)) -> (forall a b, v a = v b -> a = b) ->
  uncorrelated p (design r) d mu sigma x.
Proof.
  intros X V I. split.
  - intros a A. rewrite (mean_ext _ _ _ (fun s => mu a + sigma * s (v a) + 0 * 0 + 0 * 0)) by (intros; rewrite X; ring).
    fold E. rewrite (linear (mu a) sigma 0 0 (fun s => s (v a)) (fun _ => 0) (fun _ => 0)), mean_1 by auto. ring.
  - intros a b A B. unfold same. destruct (Nat.eqb_spec a b) as [<-|D].
    + rewrite (mean_ext _ _ _ (fun s => mu a * mu a + (2 * mu a * sigma) * s (v a) + (sigma * sigma) * (s (v a) * s (v a) * 1) + 0 * 0))
        by (intros; rewrite X; ring).
      fold E. rewrite (linear _ _ _ 0 (fun s => s (v a)) (fun s => s (v a) * s (v a) * 1) (fun _ => 0)), mean_1 by auto.
      rewrite (square_1 (v a) (fun _ => 1)). unfold E. rewrite (mean_const _ _ 1 total). ring.
    + rewrite (mean_ext _ _ _ (fun s => mu a * mu b + (mu b * sigma) * s (v a) + (mu a * sigma) * s (v b) + (sigma * sigma) * (s (v a) * s (v b))))
        by (intros; rewrite !X; ring).
      fold E. rewrite linear, !mean_1, mean_2 by auto. ring.
Qed.

Lemma linear_products (a b c e f g h i j k l m n o q : R) (x y z w : N) :
  variable r x -> variable r y -> variable r z -> variable r w ->
  x <> y -> x <> z -> x <> w -> y <> z -> y <> w -> z <> w ->
  E (fun s => a + b * s x + c * s y + e * s z + (f * s w + g * (s x * s y) + h * (s x * s z) + i * (s x * s w)) +
    (j * (s y * s z) + k * (s y * s w) + l * (s z * s w)) +
    (m * (s x * s y * s z) + n * (s x * s y * s w) + o * (s x * s z * s w)) +
    (q * (s y * s z * s w) + q * 0) ) = a.
Proof.
  intros. unfold E. rewrite !mean_plus, !mean_scal, (mean_const _ _ a total), (mean_const _ _ 0 total). fold E.
  rewrite !mean_1, !mean_2, !mean_3 by auto. ring.
Qed.

Lemma sides_are_independent : independent p (design r) d query key.
Proof.
  assert (Vq : forall c, (c < d)%nat -> variable r (N.of_nat (c + 1))) by (intros; split; lia).
  assert (Vk : forall c, (c < d)%nat -> variable r (N.of_nat (d + c + 1))) by (intros; split; lia).
  destruct (moments_of_side (fun c => N.of_nat (c + 1)) query) as [Mq Cq]; auto; [intros; lia|].
  destruct (moments_of_side (fun c => N.of_nat (d + c + 1)) key) as [Mk Ck]; auto; [intros; lia|].
  split.
  - intros a A. rewrite Mq, Mk by auto. set (x := N.of_nat (a + 1)). set (y := N.of_nat (d + a + 1)).
    rewrite (mean_ext _ _ _ (fun s => mu a * mu a + (mu a * sigma) * s x + (mu a * sigma) * s y + (sigma * sigma) * (s x * s y)))
      by (intros; unfold query, key; fold x y; ring).
    fold E. rewrite linear, !mean_1, mean_2 by (subst x y; auto; lia). ring.
  - intros a b A B. rewrite Cq, Ck by auto. unfold same.
    set (x := N.of_nat (a + 1)). set (y := N.of_nat (d + a + 1)).
    set (x' := N.of_nat (b + 1)). set (y' := N.of_nat (d + b + 1)).
    destruct (Nat.eqb_spec a b) as [<-|D].
    + set (M := mu a * mu a + sigma * sigma). set (T := 2 * mu a * sigma).
      transitivity (E (fun s => M * M + (M * T) * s x + (M * T) * s y + (T * T) * (s x * s y))).
      * unfold E, mean. apply sum_ext. intros s I. f_equal.
        pose proof (samples_are_signs _ s I x) as Sx. pose proof (samples_are_signs _ s I y) as Sy.
        unfold query, key. fold x y.
        replace ((mu a + sigma * s x) * (mu a + sigma * s x)) with (M + T * s x)
          by (unfold M, T; replace (sigma * sigma) with (sigma * sigma * (s x * s x)) by (rewrite Sx; ring); ring).
        replace ((mu a + sigma * s y) * (mu a + sigma * s y)) with (M + T * s y)
          by (unfold M, T; replace (sigma * sigma) with (sigma * sigma * (s y * s y)) by (rewrite Sy; ring); ring).
        ring.
      * rewrite linear, !mean_1, mean_2 by (subst x y; auto; lia). subst M. ring.
    + set (c := mu a). set (e := mu b). set (t := sigma).
      transitivity (E (fun s => t ^ 4 * (s x * s x' * (s y * s y')) + (c * c * e * e
        + (c * e * e * t) * s x + (c * c * e * t) * s x' + (c * e * e * t) * s y
        + ((c * c * e * t) * s y' + (c * e * t * t) * (s x * s x') + (e * e * t * t) * (s x * s y) + (c * e * t * t) * (s x * s y'))
        + ((c * e * t * t) * (s x' * s y) + (c * c * t * t) * (s x' * s y') + (c * e * t * t) * (s y * s y'))
        + ((e * t ^ 3) * (s x * s x' * s y) + (c * t ^ 3) * (s x * s x' * s y') + (e * t ^ 3) * (s x * s y * s y'))
        + ((c * t ^ 3) * (s x' * s y * s y') + (c * t ^ 3) * 0)))).
      * apply mean_ext. intros s. unfold query, key. fold x y x' y' c e t. ring.
      * unfold E. rewrite mean_plus, mean_scal. fold E. rewrite mean_4, linear_products; subst x y x' y'; auto; try lia. ring.
Qed.

(** The mean of the dot products over the design is μᵀμ, their variance 2σ²μᵀμ + dσ⁴, without any error. *)
Theorem two_point_design_is_exact :
  let square := sum (fun c => mu c * mu c) (seq 0 d) in
  mean p (design r) (dot d query key) = square /\
  variance p (design r) (dot d query key) = 2 * sigma ^ 2 * square + INR d * sigma ^ 4.
Proof.
  assert (Uq : uncorrelated p (design r) d mu sigma query).
  { apply (moments_of_side (fun c => N.of_nat (c + 1))); auto; [intros; split; lia | intros; lia]. }
  assert (Uk : uncorrelated p (design r) d mu sigma key).
  { apply (moments_of_side (fun c => N.of_nat (d + c + 1))); auto; [intros; split; lia | intros; lia]. }
  split.
  - apply (dot_product_mean p (design r) d mu sigma); auto. apply sides_are_independent.
  - apply dot_product_variance; auto. apply sides_are_independent.
Qed.
End Design.
