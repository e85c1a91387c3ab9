"""From what repetitions gave to what is reported: medians, spread, goals, changes."""

import statistics


def numbers(values):
    return [value for value in values if value is not None]


def summary(metric, values):
    """{"median", "least", "most"} of the repetitions that gave something; None: none did."""
    found = numbers(values)
    if not found:
        return None
    pick = (min if metric.better == "lower" else max) if metric.best else statistics.median
    return {"median": pick(found), "least": min(found), "most": max(found)}


def judge(metric, ours, peer):
    """A row of the report: values of all repetitions, what counts of them, and the goals."""
    row = {"key": metric.key, "what": metric.what, "unit": metric.unit, "better": metric.better,
           "statistic": "best" if metric.best else "median", "goal": metric.goal,
           "ratio_goal": metric.ratio_goal, "ours": ours, "peer": peer if numbers(peer) else None,
           "ours_summary": summary(metric, ours), "peer_summary": summary(metric, peer), "missed": []}
    if not numbers(ours):
        row["missed"].append(f"{metric.what}: it has never come to an end")
        return row
    mine = row["ours_summary"]["median"]
    ratios = [metric.ratio(own, other) for own, other in zip(ours, peer)
              if own is not None and other is not None]
    if ratios:
        middle = (metric.ratio(mine, row["peer_summary"]["median"]) if metric.best
                  else statistics.median(ratios))
        row["ratio"] = {"median": middle, "least": min(ratios), "most": max(ratios)}
        if metric.ratio_goal is not None and middle < metric.ratio_goal:
            row["missed"].append(f"{metric.what}: {middle:.3g} times, the goal is {metric.ratio_goal:g}")
    wanted = metric.goal
    if wanted is not None and (mine > wanted if metric.better == "lower" else mine < wanted):
        row["missed"].append(f"{metric.what}: {mine:.4g} {metric.unit}, the goal is {wanted:g}")
    return row


def change(row, before):
    """How ours differs from a stored row: (percent, verdict). Better or worse only where the values
    of the two do not overlap and the medians are more than 5 % apart; else it may be chance."""
    now, then = row["ours_summary"], before.get("ours_summary")
    if not now or not then or not then["median"]:
        return None
    percent = 100 * (now["median"] / then["median"] - 1)
    apart = now["least"] > then["most"] or now["most"] < then["least"]
    if not apart or abs(percent) <= 5:
        return percent, "same"
    grew = percent > 0
    return percent, "worse" if grew == (row["better"] == "lower") else "better"
