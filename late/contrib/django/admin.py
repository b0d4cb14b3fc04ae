"""Django's admin: dead letters, which an action redrives, and the tasks that wait."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.template.response import TemplateResponse
from django.urls import path

from late.contrib.django import waiting_tasks
from late.contrib.django.application import setting
from late.contrib.django.connections import database_url
from late.contrib.django.models import DeadLetter, WaitingTask
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
            self.message_user(request, f"{moved} redriven, then: {error}", messages.ERROR)
            return
        self.message_user(request, f"{moved} redriven", messages.SUCCESS)

    def has_redrive_permission(self, request: Any) -> bool:
        """Tell whether the user may redrive dead letters."""
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


@admin.register(WaitingTask)
class WaitingTaskAdmin(admin.ModelAdmin):
    """To see the list takes the permission `late.view_waitingtask`. It changes nothing and shows no
    payload. Django's own list would count the table, so `waiting_tasks.sections` makes this one."""

    def get_urls(self) -> list[Any]:
        """Return the list alone: there are no pages of single tasks."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.changelist_view), name=name)]

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show a page of the tasks that wait."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Tasks that wait",
            "opts": self.opts,
            **waiting_tasks.sections(request.GET.dict()),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/late/waiting.html", context)

    def has_add_permission(self, *_: Any) -> bool:
        """Refuse: tasks are enqueued by the project's code."""
        return False

    def has_change_permission(self, *_: Any) -> bool:
        """Refuse: `manage.py late cancel` and `late reschedule` change a task."""
        return False

    def has_delete_permission(self, *_: Any) -> bool:
        """Refuse: `manage.py late cancel` records who ended what."""
        return False
