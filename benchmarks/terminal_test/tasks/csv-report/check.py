import collections
import csv
import decimal

from prelude import HOME, part, same


@part
def totals():
    orders, sums = collections.Counter(), collections.defaultdict(decimal.Decimal)
    with (HOME / "sales.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            orders[row["region"]] += 1
            sums[row["region"]] += decimal.Decimal(row["amount"]) * int(row["quantity"])
    wanted = [["region", "orders", "total"]]
    wanted += [[name, str(orders[name]), f"{sums[name]:.2f}"] for name in sorted(sums, key=lambda n: (-sums[n], n))]
    with (HOME / "report.csv").open(newline="") as lines:
        same(list(csv.reader(lines)), wanted)
