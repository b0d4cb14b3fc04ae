"""The page for operators: what is wrong, and the means to put it right, rendered on the server.

| module | what it holds | pure |
|---|---|---|
| `models/` | values of the control plane become models of screens | yes |
| `formats.py` | numbers, ages and times for people | yes |
| `csrf.py` | headers, the form token, what a form may say | yes |
| `static_files.py` | scripts and styles, checked by their sums | |
| `snapshot.py`, `usage_today.py` | one read for everybody who watches, and one walk over a day | |
| `render.py` | models become HTML, by Jinja2 with escaping always on | |
| `page_context.py` | what all routes share, and the frame of every page | |
| `views.py`, `actions.py` | routes that show, and routes that change | |
| `event_stream.py` | the stream of events | |
| `routes.py` | all of it as routes, and who may ask for them | |

Every screen works without a script: links, forms, and whole pages. With one, the part that is
marked as live is fetched again when the stream says that there is a newer look, and times are
shown in the viewer's zone. Nothing is rendered twice, once here and once in the browser, so there
is one place where a hostile text must be escaped, and it cannot be forgotten there.

Nothing here knows `late.api`, which lets people in: it passes a `Gate`.
"""
