"""What the workers run. Yours is part of an image of its own: see docs/containers.md."""

import os

import late

app = late.App(os.environ["LATE_URL"])


@app.task(queue="mail", retry=late.Retry(max_attempts=5))
def send_receipt(order_id: int, to: str) -> None:
    print(f"receipt for order {order_id} to {to}")
