"""Columns of clouds as columns of FOCUS: what a bill is, and what its rows mean.

FOCUS 1.0 to 1.3 stay as they are. Google's standard and detailed exports and AWS's CUR 2.0 become
rows of FOCUS 1.0, whose costs add up to those of the export.

Source: the reference of each export; amortisation of AWS as its guide to CUR has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from late.errors import ConfigError

Row = dict[str, str]
GIVEN = "Allocated"
"""Columns of FOCUS 1.3 in which a cloud says how it divided a charge. Ours go there; the cloud's
are kept as `x_ProviderAllocated…`."""
COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit",
    "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName",
    "ServiceName", "SkuId", "SubAccountId", "SubAccountName", "Tags",
)  # fmt: skip
"""Those that are made of other exports."""
_PACIFIC = ZoneInfo("America/Los_Angeles")
"""Google's months of invoices are of this zone."""


class Dialect(NamedTuple):
    """How one kind of bill is read."""

    columns: tuple[str, ...]
    row: Callable[[Row, str], Row]
    """(row of the file, where it is) -> row of FOCUS. Raises `ConfigError`."""


def of(columns: Sequence[str], path: Path) -> Dialect:
    """Recognise a bill by its columns.

    Raises:
        ConfigError: the older report of AWS, whose columns change from month to month.
    """
    names = set(columns)
    if "line_item_line_item_type" in names:
        return Dialect(COLUMNS, _aws)
    if "usage_start_time" in names and "billing_account_id" in names:
        return Dialect(COLUMNS, _google)
    if any(name.startswith("lineItem/") for name in columns):
        raise ConfigError(f"bill {path} is a legacy CUR of AWS: export CUR 2.0 or FOCUS instead")
    return Dialect(tuple(_own(name) for name in columns), _focus)


def _own(column: str) -> str:
    return f"x_Provider{column}" if column.startswith(GIVEN) else column


def _focus(row: Row, _: str) -> Row:
    # The specification has no text for null; exports write it out.
    return {_own(name): "" if cell == "NULL" else cell for name, cell in row.items()}


def _google(row: Row, where: str) -> Row:
    def get(name: str) -> str:
        return row.get(name) or row.get(name.replace(".", "_")) or ""

    cost = _number(get("cost"), f"{where}: cost")
    credits = _listed(get("credits"), f"{where}: credits")
    net = cost + sum(
        (_number(str(each.get("amount", 0)), f"{where}: credits") for each in credits), Decimal(0)
    )
    kind = get("cost_type")
    start, end = _invoice_month(get("invoice.month"), where)
    labels = {
        str(each.get("key", "")): each.get("value", "")
        for each in _listed(get("labels"), f"{where}: labels")
    }
    corrects = kind == "adjustment" or get("adjustment_info.type") not in ("", "NONE")
    return {
        **dict.fromkeys(COLUMNS, ""),
        # Commitments of Google are billed as they are used: nothing is to be spread.
        **dict.fromkeys(("BilledCost", "EffectiveCost", "ContractedCost"), f"{net:f}"),
        "ListCost": get("cost_at_list") or f"{cost:f}",
        "BillingAccountId": get("billing_account_id"),
        "BillingCurrency": get("currency"),
        "BillingPeriodStart": start,
        "BillingPeriodEnd": end,
        "ChargeCategory": {"tax": "Tax", "adjustment": "Adjustment",
                           "rounding_error": "Adjustment"}.get(kind, "Usage"),
        "ChargeClass": "Correction" if corrects else "",
        "ChargeDescription": get("sku.description"),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": get("usage_start_time").removesuffix(" UTC"),
        "ChargePeriodEnd": get("usage_end_time").removesuffix(" UTC"),
        "ConsumedQuantity": get("usage.amount"),
        "ConsumedUnit": get("usage.unit"),
        "PricingQuantity": get("usage.amount_in_pricing_units"),
        "PricingUnit": get("usage.pricing_unit"),
        "InvoiceIssuerName": get("seller_name") or "Google Cloud",
        "ProviderName": "Google Cloud",
        "PublisherName": "Google Cloud",
        "RegionId": get("location.region"),
        "RegionName": get("location.location"),
        "ResourceId": get("resource.global_name"),
        "ResourceName": get("resource.name"),
        "ServiceName": get("service.description"),
        "SkuId": get("sku.id"),
        "SubAccountId": get("project.id"),
        "SubAccountName": get("project.name"),
        "Tags": json.dumps(labels, sort_keys=True) if labels else "",
    }  # fmt: skip


def _invoice_month(text: str, where: str) -> tuple[str, str]:
    try:
        first = datetime.strptime(text, "%Y%m").replace(tzinfo=_PACIFIC)
    except ValueError:
        raise ConfigError(f"{where}: invoice.month {text[:64]!r} is no month") from None
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return first.astimezone(UTC).isoformat(), after.astimezone(UTC).isoformat()


_AWS_CATEGORIES = {
    "Fee": "Purchase", "RIFee": "Purchase", "SavingsPlanUpfrontFee": "Purchase",
    "SavingsPlanRecurringFee": "Purchase", "Tax": "Tax", "Credit": "Credit", "Refund": "Credit",
}  # fmt: skip


def _aws(row: Row, where: str) -> Row:
    def net(name: str, plain: str) -> str:
        """Return what was agreed on, where the account has such prices."""
        return row.get(name) or row.get(plain) or "0"

    kind = row["line_item_line_item_type"]
    billed = net("line_item_net_unblended_cost", "line_item_unblended_cost")
    category = _AWS_CATEGORIES.get(kind, "Usage")
    frequency = "Usage-Based"
    if category == "Purchase":
        frequency = "Recurring" if kind in ("RIFee", "SavingsPlanRecurringFee") else "One-Time"
    product = _mapped(row.get("product", ""))
    return {
        **dict.fromkeys(COLUMNS, ""),
        "BilledCost": billed,
        "ContractedCost": billed,
        "EffectiveCost": f"{_amortised(row, kind, billed, where):f}",
        "ListCost": row.get("pricing_public_on_demand_cost") or billed,
        "BillingAccountId": row.get("bill_payer_account_id", ""),
        "BillingAccountName": row.get("bill_payer_account_name", ""),
        "BillingCurrency": row.get("line_item_currency_code", ""),
        "BillingPeriodStart": row.get("bill_billing_period_start_date", ""),
        "BillingPeriodEnd": row.get("bill_billing_period_end_date", ""),
        "ChargeCategory": category,
        "ChargeClass": "Correction" if kind == "Refund" else "",
        "ChargeDescription": row.get("line_item_line_item_description", ""),
        "ChargeFrequency": frequency,
        "ChargePeriodStart": row.get("line_item_usage_start_date", ""),
        "ChargePeriodEnd": row.get("line_item_usage_end_date", ""),
        "ConsumedQuantity": row.get("line_item_usage_amount", ""),
        "ConsumedUnit": row.get("pricing_unit", ""),
        "PricingQuantity": row.get("line_item_usage_amount", ""),
        "PricingUnit": row.get("pricing_unit", ""),
        "InvoiceIssuerName": row.get("bill_invoicing_entity", ""),
        "ProviderName": "AWS",
        "PublisherName": row.get("line_item_legal_entity", ""),
        "RegionId": row.get("product_region_code", ""),
        "RegionName": row.get("product_location", ""),
        "ResourceId": row.get("line_item_resource_id", ""),
        "ServiceName": product.get("product_name") or row.get("line_item_product_code", ""),
        "SkuId": row.get("product_sku", ""),
        "SubAccountId": row.get("line_item_usage_account_id", ""),
        "SubAccountName": row.get("line_item_usage_account_name", ""),
        "Tags": row.get("resource_tags", ""),
    }


def _amortised(row: Row, kind: str, billed: str, where: str) -> Decimal:
    """Spread what was paid ahead over the usage that it was paid for."""

    def of(name: str) -> Decimal:
        return _number(row.get(name) or "0", f"{where}: {name}")

    def net(net_name: str, name: str) -> Decimal:
        return of(net_name if row.get(net_name) else name)

    match kind:
        case "DiscountedUsage":
            return net("reservation_net_effective_cost", "reservation_effective_cost")
        case "RIFee":
            return net(
                "reservation_net_unused_amortized_upfront_fee_for_billing_period",
                "reservation_unused_amortized_upfront_fee_for_billing_period",
            ) + net("reservation_net_unused_recurring_fee", "reservation_unused_recurring_fee")
        case "SavingsPlanCoveredUsage":
            return net(
                "savings_plan_net_savings_plan_effective_cost",
                "savings_plan_savings_plan_effective_cost",
            )
        case "SavingsPlanRecurringFee":
            return of("savings_plan_total_commitment_to_date") - of("savings_plan_used_commitment")
        case "SavingsPlanUpfrontFee" | "SavingsPlanNegation":
            return Decimal(0)
        case "Fee" if row.get("reservation_reservation_a_r_n"):
            return Decimal(0)
    return _number(billed, f"{where}: line_item_unblended_cost")


def _number(text: str, what: str) -> Decimal:
    try:
        found = Decimal(text.strip())
    except InvalidOperation:
        raise ConfigError(f"{what}: {text[:64]!r} is not an amount") from None
    if not found.is_finite():
        raise ConfigError(f"{what}: {text[:64]!r} is not an amount of money")
    return found


def _listed(text: str, what: str) -> list[Mapping[str, object]]:
    """Read a repeated field, which is JSON."""
    try:
        found = json.loads(text, parse_float=Decimal) if text else []
    except ValueError:
        raise ConfigError(f"{what} cannot be read: export it as JSON or Parquet") from None
    return [each for each in found or [] if isinstance(each, dict)]


def _mapped(text: str) -> Mapping[str, str]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
