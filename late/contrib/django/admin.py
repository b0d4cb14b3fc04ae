"""Dead letters in Django's admin: a list, and an action that sends them back."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages

from late.contrib.django.application import setting
from late.contrib.django.connections import database_url
from late.contrib.django.models import DeadLetter
from late.control import Control, Filter
from late.control.audit import acting
from late.errors import LateError


@admin.register(DeadLetter)
class DeadLetterAdmin(admin.ModelAdmin):
    """To see them takes the permission `late.view_deadletter`, to redrive `late.change_deadletter`.

    Everything else is done by `manage.py late dead` or the page of `late serve`.
    """

    list_display = ("task_id", "name", "queue", "reason", "attempts", "died", "error")
    list_display_links = None
    list_filter = ("reason", "queue", "name")
    search_fields = ("task_id", "errors")
    search_help_text = "an id, or a text of an error"
    actions = ("redrive",)

    @admin.display(description="died", ordering="dead_at_us")
    def died(self, letter: DeadLetter) -> Any:
        """Show the time at which it died."""
        return letter.died_at

    @admin.display(description="last error")
    def error(self, letter: DeadLetter) -> str:
        """Show the last attempt's error, cut to one line."""
        return letter.last_error[:200]

    @admin.action(description="Redrive: run again, attempts from zero", permissions=["redrive"])
    def redrive(self, request: Any, letters: Any) -> None:
        """Send the chosen letters back to run again."""
        moved = 0
        try:
            with acting(str(request.user)), Control(database_url(setting("DATABASE"))) as control:
                for letter in letters:
                    which = Filter(task_id=letter.task_id, group=letter.consumer_group)
                    moved += control.dead_letters.redrive(which).count
        except LateError as error:
            self.message_user(request, f"{moved} sent back, then: {error}", messages.ERROR)
            return
        self.message_user(request, f"{moved} sent back", messages.SUCCESS)

    def has_redrive_permission(self, request: Any) -> bool:
        """Tell whether the user may send dead letters back."""
        return bool(request.user.has_perm("late.change_deadletter"))

    def has_add_permission(self, *_: Any) -> bool:
        """Refuse: tasks are enqueued by the project's code."""
        return False

    def has_change_permission(self, *_: Any) -> bool:
        """Refuse: `manage.py late dead edit` changes a payload."""
        return False

    def has_delete_permission(self, *_: Any) -> bool:
        """Refuse: `manage.py late dead purge` records who removed what."""
        return False
