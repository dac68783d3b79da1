import json
import sqlite3
import statistics

from prelude import HOME, part, same

db = sqlite3.connect(":memory:")
db.executescript((HOME / "shop.sql").read_text())


def answer():
    return json.loads((HOME / "answer.json").read_text())


@part
def customers_without_orders():
    rows = db.execute("select name from customer where id not in (select customer_id from orders) order by name")
    same(answer()["without_orders"], [name for (name,) in rows])


@part
def best_month():
    rows = db.execute(
        "select substr(placed, 1, 7) m, sum(cents) from orders where state = 'paid' group by m order by 2 desc limit 1"
    )
    same(answer()["best_month"], list(rows.fetchone()))


@part
def median_of_paid_orders():
    cents = [value for (value,) in db.execute("select cents from orders where state = 'paid'")]
    same(float(answer()["median_cents"]), float(statistics.median(cents)))
