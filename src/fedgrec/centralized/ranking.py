"""Full ranking for any model, with the metrics of the federated systems."""

from collections.abc import Sequence

from fedgrec.centralized.contract import Ints, Model, to_numpy
from fedgrec.models.metrics import Ideal
from fedgrec.models.ranking import Csr, Ids, Indptr, Result, evaluate, evaluate_ranking, top_k_scores


def evaluate_model(
    model: Model, seen: Csr, held_out: Csr, ks: Sequence[int] = (20,), ndcg_ideal: Ideal = "capped"
) -> Result:
    """Rank all items that each user has not seen, and say how well: on the GPU if the model is there."""
    n_items = model.train.n_items
    if model.device.startswith("cuda"):
        from fedgrec.models.gpu_ranking import top_k_on_device

        score_there = model.scorer()

        def rank_there(users: Ints, k: int, indptr: Indptr, items: Ids) -> Ids:
            return top_k_on_device(score_there, users, k, n_items, indptr, items)

        return evaluate_ranking(rank_there, n_items, seen, held_out, ks, ndcg_ideal)
    if (pair := model.embeddings()) is not None:
        return evaluate(*pair, seen, held_out, ks, ndcg_ideal)
    score = model.scorer()

    def rank(users: Ints, k: int, indptr: Indptr, items: Ids) -> Ids:
        return top_k_scores(lambda at: to_numpy(score(users[at])), n_items, k, indptr, items)[0]

    return evaluate_ranking(rank, n_items, seen, held_out, ks, ndcg_ideal)
