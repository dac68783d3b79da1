cd ~
python3 - <<'P'
import json, sqlite3, statistics

db = sqlite3.connect(":memory:")
db.executescript(open("shop.sql").read())
paid = db.execute("select substr(placed, 1, 7), cents from orders where state = 'paid'").fetchall()
months = {}
for month, cents in paid:
    months[month] = months.get(month, 0) + cents
json.dump(
    {
        "without_orders": [name for (name,) in db.execute(
            "select name from customer where not exists (select 1 from orders where customer_id = customer.id) order by 1")],
        "best_month": max(months.items(), key=lambda item: item[1]),
        "median_cents": statistics.median(cents for _, cents in paid),
    },
    open("answer.json", "w"),
)
P
