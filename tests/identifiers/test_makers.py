"""The makers of codes: what each promises, and states that survive a file."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import identifiers as naive
from safetensors.numpy import load_file, save_file
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

from callslip.errors import BadSetting
from callslip.identifiers import (
    END,
    RQVAE,
    VQVAE,
    HierarchicalKMeans,
    Identifiers,
    ProductQuantizer,
    ResidualQuantizer,
    atomic_codes,
    constrained_kmeans,
    disambiguate,
    kmeans,
    naive_codes,
    random_codes,
)
from callslip.identifiers.kmeans import assign_within_sizes, cluster_centres, nearest


def blobs(n=400, dim=12, centres=8, seed=0, spread=0.05):
    rng = np.random.default_rng(seed)
    middles = rng.normal(size=(centres, dim))
    labels = rng.integers(0, centres, n)
    return (middles[labels] + spread * rng.normal(size=(n, dim))).astype(np.float32), labels


def same_partition(one, other):
    return len(set(zip(one, other))) == len(set(one)) == len(set(other))


@given(st.integers(0, 60), st.integers(1, 3), st.integers(1, 5), st.integers(0, 3))
def test_random_codes_are_as_even_as_can_be(n, length, width, seed):
    codes = random_codes(n, length, width, seed)
    assert codes.shape == (n, length) and codes.dtype == np.int32
    assert np.array_equal(codes, random_codes(n, length, width, seed))
    if n:
        assert codes.min() >= 0 and codes.max() < width
        sizes = np.unique(codes, axis=0, return_counts=True)[1]
        assert len(sizes) == min(n, width**length)
        assert sizes.max() == -(-n // width**length)


def test_random_codes_differ_by_seed_and_level():
    assert not np.array_equal(random_codes(50, 3, 64, 0), random_codes(50, 3, 64, 1))
    codes = random_codes(500, 7, [3, 32_000, 2, 2, 2, 32_000, 32_000])
    assert (codes.max(axis=0) < [3, 32_000, 2, 2, 2, 32_000, 32_000]).all()
    assert codes[:, 1].max() > 31_000
    with pytest.raises(BadSetting):
        random_codes(5, 2, 0)


def test_atomic_and_naive_codes():
    assert atomic_codes(3).tolist() == [[0], [1], [2]]
    assert naive_codes(["ab", "é", "a"]).tolist() == [[97, 98], [195, 169], [97, END]]
    digits = naive_codes(["x"] * 120, digits=True)
    assert digits[7].tolist() == [7, END, END] and digits[119].tolist() == [1, 1, 9]
    assert Identifiers([str(i) for i in range(120)], digits).unique == 120


@given(st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=25))
def test_disambiguated_codes_are_unique_and_keep_their_beginning(sequences):
    table = Identifiers.from_sequences(map(str, range(len(sequences))), sequences)
    codes = table.in_row_order()[1]
    unique = disambiguate(codes)
    assert Identifiers(map(str, range(len(sequences))), unique).unique == len(sequences)
    for before, after in zip(codes.tolist(), unique.tolist()):
        real = [token for token in before if token != END]
        assert after[: len(real)] == real and sum(token != END for token in after) <= len(real) + 1


def test_disambiguation_counts_in_row_order():
    assert disambiguate([[1, 2], [0, 0], [1, 2]]).tolist() == [[1, 2, 0], [0, 0, 0], [1, 2, 1]]
    assert disambiguate([[1, 2], [1, 2]], first_rank=5).tolist() == [[1, 2, 5], [1, 2, 6]]
    assert disambiguate([[3, END], [3, END], [3, 1]]).tolist() == [[3, END], [3, 5], [3, 1]]
    with pytest.raises(BadSetting):
        disambiguate([[3, END], [3, END]], first_rank=2)


class TestClusters:
    def test_nearest_is_the_nearest(self):
        rng = np.random.default_rng(0)
        x, c = rng.normal(size=(70, 5)).astype(np.float32), rng.normal(size=(9, 5)).astype(np.float32)
        expected = [min(range(9), key=lambda j: float(((v - c[j]) ** 2).sum())) for v in x]
        assert nearest(x, c, chunk=16).tolist() == expected

    def test_one_level_is_plain_k_means(self):
        vectors, _ = blobs(spread=0.5)
        codes = HierarchicalKMeans(8, 1, seed=1).fit(vectors)
        other = KMeans(8, n_init=1, random_state=1).fit(vectors).labels_
        assert same_partition(codes[:, 0].tolist(), other.tolist())

    def test_the_second_level_is_k_means_of_each_cluster(self):
        vectors, _ = blobs(spread=0.5)
        codes = HierarchicalKMeans(5, 2).fit(vectors)
        for token in range(5):
            inside = codes[:, 0] == token
            other = KMeans(5, n_init=1, random_state=0).fit(vectors[inside]).labels_
            assert same_partition(codes[inside, 1].tolist(), other.tolist())

    def test_mini_batches_above_many(self, monkeypatch):
        vectors, _ = blobs(2000)
        monkeypatch.setattr("callslip.identifiers.kmeans.MANY", 500)
        centres = cluster_centres(vectors, 8)
        near = nearest(vectors, centres)
        assert ((vectors - centres[near]) ** 2).sum(axis=1).mean() < 0.5 * vectors.var(axis=0).sum()

    @pytest.mark.parametrize("leaf", ["bucket", "rank"])
    @pytest.mark.parametrize("balanced", [False, True])
    def test_codes_of_the_hierarchy(self, leaf, balanced):
        vectors, _ = blobs(250)
        maker = HierarchicalKMeans(6, 3, leaf=leaf, balanced=balanced)
        codes = maker.fit(vectors)
        assert codes.shape == (250, 3) and codes.dtype == np.int32
        assert codes[:, :2].max() < 6 and codes.min() == 0
        again = HierarchicalKMeans(6, 3, leaf=leaf, balanced=balanced)
        assert np.array_equal(codes, again.fit(vectors))
        if leaf == "rank":
            assert len(np.unique(codes, axis=0)) == 250
        if balanced:
            assert np.ptp(np.bincount(codes[:, 0])) <= 1
        new = maker.assign(vectors)
        if not balanced and leaf == "bucket":
            assert np.array_equal(new, codes)
        elif not balanced:
            assert np.array_equal(new[:, :-1], codes[:, :-1])
            both = np.concatenate([codes, new])
            assert len(np.unique(both, axis=0)) == 500  # the new are numbered after the old

    def test_ranks_go_on_after_what_is_taken(self):
        vectors, _ = blobs(60)
        maker = HierarchicalKMeans(4, 2, leaf="rank")
        table = Identifiers(map(str, range(60)), maker.fit(vectors))
        for step in range(3):
            new = maker.assign(vectors[:10], table)
            table = table.with_added([f"{step}-{i}" for i in range(10)], new)
            assert np.array_equal(
                np.sort(maker.assign(vectors[:10], table.codes)), np.sort(maker.assign(vectors[:10], table))
            )
        assert table.unique == 90

    def test_small_groups_are_told_apart_and_equal_vectors_are_not(self):
        vectors = np.repeat(np.eye(5, dtype=np.float32), [3, 1, 1, 1, 1], axis=0)
        codes = HierarchicalKMeans(8, 3).fit(vectors)
        assert len(np.unique(codes[:, 0])) == 5 and np.array_equal(codes[0], codes[2])
        assert np.unique(codes[:, 1:]).tolist() == [0]

    def test_bad_vectors_are_refused(self):
        maker = HierarchicalKMeans(4, 2)
        bad = np.ones((3, 2), np.float32)
        bad[1, 1] = np.nan
        for refused in (bad, np.ones(3), np.zeros((0, 2))):
            with pytest.raises(BadSetting):
                maker.fit(refused)
        with pytest.raises(BadSetting, match="fit first"):
            maker.assign(np.ones((3, 2)))
        maker.fit(np.eye(4))
        with pytest.raises(BadSetting):
            maker.assign(np.ones((3, 2)))


class TestSizes:
    @settings(deadline=None, max_examples=40)
    @given(st.data())
    def test_assignment_is_optimal(self, data):
        k = data.draw(st.integers(1, 3))
        size_min = data.draw(st.integers(0, 2))
        size_max = data.draw(st.integers(max(1, size_min), 4))
        n = data.draw(st.integers(max(1, k * size_min), min(7, k * size_max))) if k * size_min <= 7 else 0
        rng = np.random.default_rng(data.draw(st.integers(0, 100)))
        cost = rng.integers(0, 20, (n, k)).astype(float) if rng.random() < 0.5 else rng.random((n, k))
        labels = assign_within_sizes(cost, size_min, size_max)
        sizes = np.bincount(labels, minlength=k)
        assert sizes.min() >= size_min and sizes.max() <= size_max
        paid = cost[np.arange(n), labels].sum()
        assert paid == pytest.approx(naive.best_cost_within_sizes(cost.tolist(), size_min, size_max))

    def test_equal_sizes_agree_with_the_hungarian_method(self):
        cost = np.random.default_rng(0).random((60, 6))
        labels = assign_within_sizes(cost, 10, 10)
        rows, columns = linear_sum_assignment(np.repeat(cost, 10, axis=1))
        assert cost[np.arange(60), labels].sum() == pytest.approx(np.repeat(cost, 10, axis=1)[rows, columns].sum())

    def test_bounds_agree_with_the_hungarian_method(self):
        cost = np.random.default_rng(1).random((11, 3))
        labels = assign_within_sizes(cost, 2, 6)
        options = [s for s in itertools.product(range(2, 7), repeat=3) if sum(s) == 11]
        best = min(
            wide[linear_sum_assignment(wide)].sum() for wide in (np.repeat(cost, sizes, axis=1) for sizes in options)
        )
        assert cost[np.arange(11), labels].sum() == pytest.approx(best)

    @pytest.mark.parametrize(("size_min", "size_max"), [(0, 200), (10, 40), (24, 26), (25, 25)])
    def test_sizes_are_kept(self, size_min, size_max):
        vectors, _ = blobs(200, centres=3)
        labels, centroids = constrained_kmeans(vectors, 8, size_min, size_max, seed=3)
        sizes = np.bincount(labels, minlength=8)
        assert sizes.min() >= size_min and sizes.max() <= size_max and centroids.shape == (8, 12)
        for cluster in np.flatnonzero(sizes):
            assert np.allclose(centroids[cluster], vectors[labels == cluster].mean(axis=0), atol=1e-5)
        assert np.array_equal(labels, constrained_kmeans(vectors, 8, size_min, size_max, seed=3)[0])

    def test_each_iteration_is_no_dearer(self):
        vectors, _ = blobs(200, centres=5, spread=1.0)
        costs = []
        for iterations in (1, 2, 4, 20):
            labels, centroids = constrained_kmeans(vectors, 6, 20, 50, iterations=iterations)
            costs.append(((vectors - centroids[labels]) ** 2).sum())
        assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(costs))

    def test_equal_vectors(self):
        labels, _ = constrained_kmeans(np.ones((12, 3)), 4, 3, 3)
        assert np.bincount(labels).tolist() == [3, 3, 3, 3]

    @pytest.mark.parametrize(("k", "low", "high"), [(3, 4, 9), (3, 0, 3), (0, 0, 10), (3, -1, 9)])
    def test_impossible_sizes_are_refused(self, k, low, high):
        with pytest.raises(BadSetting):
            constrained_kmeans(np.eye(10), k, low, high)


class TestQuantisers:
    @pytest.mark.parametrize("maker", [ProductQuantizer(3, 16), ResidualQuantizer(3, 16)])
    def test_the_error_falls_with_every_level_and_fit_is_assign(self, maker):
        vectors = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
        codes = maker.fit(vectors)
        assert codes.shape == (300, 3) and codes.dtype == np.int32 and 8 <= codes.max() < 16
        assert np.array_equal(codes, maker.assign(vectors))
        error = ((vectors - maker.decode(codes)) ** 2).sum(axis=1).mean()
        assert error < 0.7 * (vectors**2).sum(axis=1).mean()
        wrong = np.roll(codes, 1, axis=0)
        assert error < ((vectors - maker.decode(wrong)) ** 2).sum(axis=1).mean()
        with pytest.raises(BadSetting):
            maker.assign(vectors[:, :5])

    def test_product_levels_see_their_stretch_alone(self):
        vectors = np.random.default_rng(0).normal(size=(200, 10)).astype(np.float32)
        maker = ProductQuantizer(3, 8)
        codes = maker.fit(vectors)
        assert [book.shape[1] for book in maker.codebooks] == [4, 3, 3]
        vectors[:, 4:7] *= -1
        changed = maker.assign(vectors) != codes
        assert changed[:, 1].mean() > 0.5 and not changed[:, [0, 2]].any()

    def test_residual_levels_go_from_coarse_to_fine(self):
        vectors = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
        maker = ResidualQuantizer(4, 8)
        codes = maker.fit(vectors)
        errors = [((vectors - maker.decode(codes[:, :n])) ** 2).sum() for n in (1, 2, 3, 4)]
        assert errors == sorted(errors, reverse=True) and errors[3] < 0.7 * errors[0]

    @pytest.mark.parametrize("maker", [ProductQuantizer(2, 50), ResidualQuantizer(2, 50), HierarchicalKMeans(50, 2)])
    def test_fewer_documents_than_tokens(self, maker):
        vectors = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
        assert len(np.unique(maker.fit(vectors), axis=0)) == 7

    @pytest.mark.parametrize(
        "maker",
        [
            ProductQuantizer(3, 8),
            ResidualQuantizer(3, 8),
            HierarchicalKMeans(5, 3),
            HierarchicalKMeans(5, 3, leaf="rank"),
            RQVAE(3, 8, 10, latent=4, hidden=(16,)),
            VQVAE(3, 8, 10, latent=4, hidden=(16,)),
        ],
        ids=lambda maker: type(maker).__name__,
    )
    def test_a_state_survives_a_file(self, maker, tmp_path):
        rng = np.random.default_rng(0)
        maker.fit(rng.normal(size=(120, 10)).astype(np.float32))
        new = rng.normal(size=(40, 10)).astype(np.float32)
        save_file(maker.state(), tmp_path / "state.safetensors")
        again = type(maker).from_state(load_file(tmp_path / "state.safetensors"))
        assert np.array_equal(maker.assign(new), again.assign(new))
        assert {k: v.tolist() for k, v in again.state().items()} == {k: v.tolist() for k, v in maker.state().items()}


class TestRQVAE:
    def test_training_lowers_the_error_and_codes_keep_the_blobs(self):
        import torch

        vectors, labels = blobs(500, dim=16, centres=12, spread=0.1)
        settings = {"latent": 8, "hidden": (32,)}

        def error(maker):
            with torch.no_grad():
                return float(maker(maker._standardise(torch.from_numpy(vectors)))[0]["reconstruction"])

        maker = RQVAE(3, 16, 16, **settings)
        maker.fit(vectors, epochs=1, batch_size=128, device="cpu")
        before = error(maker)
        codes = maker.fit(vectors, epochs=30, batch_size=128, device="cpu")
        assert error(maker) < 0.5 * before
        assert codes.shape == (500, 3) and codes.dtype == np.int32 and 0 <= codes.min() <= codes.max() < 16
        # a full code almost never mixes two blobs
        owners = {}
        for code, label in zip(map(tuple, codes), labels):
            owners.setdefault(code, []).append(label)
        pure = sum(max(np.bincount(members)) for members in owners.values())
        assert pure / 500 > 0.95
        assert np.array_equal(codes, maker.assign(vectors))

    def test_same_seed_same_codes_and_the_global_generator_is_left_alone(self):
        import torch

        vectors = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
        state = torch.random.get_rng_state()
        runs = [RQVAE(2, 8, 6, latent=4, hidden=(8,)).fit(vectors, epochs=3, device="cpu") for _ in range(2)]
        assert np.array_equal(*runs)
        assert torch.equal(state, torch.random.get_rng_state())

    def test_loss_terms_by_hand_and_where_their_gradients_go(self):
        import torch

        from callslip.identifiers.rqvae import rqvae_loss

        x, output = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])
        residuals = torch.tensor([[[3.0], [1.0]]], requires_grad=True)
        chosen = torch.tensor([[[1.0], [2.0]]], requires_grad=True)
        terms = rqvae_loss(x, output, residuals, chosen, beta=0.25)
        assert {name: value.item() for name, value in terms.items()} == {
            "reconstruction": 5.0,
            "codebook": 5.0,
            "commitment": 1.25,
        }
        terms["codebook"].backward(retain_graph=True)
        assert residuals.grad is None and chosen.grad.flatten().tolist() == [-4.0, 2.0]
        terms["commitment"].backward()
        assert residuals.grad.flatten().tolist() == [1.0, -0.5]

    def test_the_gradient_passes_straight_through(self):
        import torch

        maker = RQVAE(2, 4, 3, latent=2, hidden=(4,))
        terms, _ = maker(torch.randn(5, 3))
        terms["reconstruction"].backward()
        assert maker.encoder[0].weight.grad.abs().sum() > 0
        assert maker.codebooks.grad is None or maker.codebooks.grad.abs().sum() == 0

    def test_dead_tokens_restart_at_residuals(self):
        import torch

        maker = RQVAE(1, 4, 3, latent=2, hidden=(4,))
        x = torch.randn(20, 3)
        old = maker.codebooks.detach().clone()
        dead = torch.tensor([[False, True, False, True]])
        maker._restart_dead(x, dead, torch.Generator().manual_seed(0))
        latents = maker._latents(x)
        for token in range(4):
            new = maker.codebooks.detach()[0, token]
            if dead[0, token]:
                assert torch.isclose(latents, new).all(dim=1).any()
            else:
                assert torch.equal(new, old[0, token])


def test_the_package_is_light():
    code = (
        "import sys, callslip.identifiers as made\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'transformers', 'tokenizers', 'ot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert all(hasattr(made, name) for name in made.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestVQVAE:
    def test_each_part_of_the_latent_is_coded_by_its_nearest_row(self):
        import torch

        maker = VQVAE(2, 5, 6, latent=3, hidden=(8,)).requires_grad_(False)
        latent = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
        tokens, parts, chosen = maker.quantise(latent)
        for row, level in itertools.product(range(9), range(2)):
            part, book = latent[row, 3 * level : 3 * level + 3], maker.codebooks[level]
            nearest_row = min(range(5), key=lambda k: float((part - book[k]).square().sum()))
            assert int(tokens[row, level]) == nearest_row
            assert torch.equal(parts[row, level], part) and torch.equal(chosen[row, level], book[nearest_row])
        assert torch.equal(maker.joined(chosen), chosen.reshape(9, 6))

    def test_training_lowers_the_error_and_codes_keep_the_blobs(self):
        import torch

        vectors, labels = blobs(300, dim=16, centres=6, spread=0.1)

        def error(maker):
            with torch.no_grad():
                return float(maker(maker._standardise(torch.from_numpy(vectors)))[0]["reconstruction"])

        maker = VQVAE(2, 6, 16, latent=4, hidden=(32,))
        short = VQVAE(2, 6, 16, latent=4, hidden=(32,))
        short.fit(vectors, epochs=1, device="cpu")
        codes = maker.fit(vectors, epochs=40, batch_size=50, learning_rate=3e-3, device="cpu")
        assert codes.shape == (300, 2) and error(maker) < 0.7 * error(short)
        shared = sum(len({tuple(c) for c in codes[labels == label].tolist()}) for label in range(6))
        assert shared < 40  # documents of a blob have few codes


def inertia(vectors: np.ndarray, centres: np.ndarray) -> float:
    return float(((vectors - centres[kmeans.nearest(vectors, centres)]) ** 2).sum())


def test_many_vectors_are_clustered_by_faiss(monkeypatch):
    """On a sample, the same for the same seed, and about as well as by scikit-learn, which is asked where faiss is not
    installed."""
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(20, 8))[rng.integers(0, 20, 3000)] + 0.2 * rng.normal(size=(3000, 8))).astype(
        np.float32
    )
    slow = kmeans.cluster_centres(vectors, 20, 1)
    calls, original = [], faiss.Kmeans

    def watched(*arguments, **options):
        calls.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(faiss, "Kmeans", watched)
    assert kmeans.cluster_centres(vectors, 20, 1) is not None and not calls  # too few
    monkeypatch.setattr(kmeans, "LARGE", 2000)
    quick = kmeans.cluster_centres(vectors, 20, 1)
    assert len(calls) == 1 and calls[0]["max_points_per_centroid"] == kmeans.SAMPLE
    assert inertia(vectors, quick) < 1.5 * inertia(vectors, slow) and len(quick) <= 20
    np.testing.assert_array_equal(quick, kmeans.cluster_centres(vectors, 20, 1))
    assert not np.array_equal(quick, kmeans.cluster_centres(vectors, 20, 2))
    monkeypatch.setattr(kmeans.importlib.util, "find_spec", lambda name: None)
    np.testing.assert_array_equal(slow, kmeans.cluster_centres(vectors, 20, 1))
