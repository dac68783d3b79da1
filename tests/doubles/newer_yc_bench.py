"""A yc-bench with the surface of later revisions of its repository, made at test time from the installed 0.1.0.

It is a copy of the installed package in a virtual environment of its own, changed by the edits below. What it has of
later revisions: one preset, unknown ones refused, four domains, another start fund; tables are made on first use; a
clock that stops at every payroll and is refused while no task runs; people are assigned by name, several at once; the
market shows what the company may take; clients. It is no copy of any revision: its world is that of 0.1.0.
"""

from __future__ import annotations

import compileall
import shutil
import sysconfig
import venv
from pathlib import Path

import yc_bench

START_FUNDS_CENTS = 60_000_000
DOMAINS = ("inference", "research", "data_environment", "training")
EMPLOYEES = 4

EDITS: dict[str, list[tuple[str, str]]] = {
    "config/presets/default.toml": [
        ("initial_funds_cents      = 25_000_000", f"initial_funds_cents      = {START_FUNDS_CENTS}"),
        ("horizon_years = 3", "horizon_years = 1"),
        ("num_employees            = 10", f"num_employees            = {EMPLOYEES}"),
        ("num_market_tasks             = 500", "num_market_tasks             = 60"),
        ("deadline_qty_per_day   = 320", "deadline_qty_per_day = 15"),  # so that one employee can finish in time
    ],
    "config/__init__.py": [
        ("    try:\n        return", "    if True:\n        return"),
        ("    except Exception:\n        return WorldConfig()\n", ""),
    ],
    "db/models/company.py": [
        ('SYSTEM = "system"', 'INFERENCE = "inference"'),
        ('DATA = "data"', 'DATA = "data_environment"'),
        ('FRONTEND = "frontend"', 'SYSTEM = "inference"'),  # members of one value are one
        ('BACKEND = "backend"', 'BACKEND = FRONTEND = "inference"'),
        ('HARDWARE = "hardware"', 'HARDWARE = "inference"'),
    ],
    "db/session.py": [("import company, employee", "import client, company, employee")],
    "services/seed_world.py": [
        (
            "    _seed_market_tasks(db, company, req)\n",
            "    _seed_market_tasks(db, company, req)\n"
            "    from ..db.models.client import Client\n"
            "    db.add_all([Client(name=name) for name in ('First', 'Second')])\n",
        )
    ],
    "cli/__init__.py": [
        ("build_session_factory, session_scope", "build_session_factory, init_db, session_scope"),
        ("    engine = build_engine()\n", "    engine = build_engine()\n    init_db(engine)\n"),
        (
            'app.add_typer(sim_app, name="sim")',
            "from .client_commands import client_app\n"
            'app.add_typer(client_app, name="client")\n'
            'app.add_typer(sim_app, name="sim")',
        ),
    ],
    "cli/sim_commands.py": [
        (
            "one()\n\n        next_event",
            "one()\n\n        from ..db.models.task import Task, TaskStatus\n"
            "        if not db.query(Task).filter(Task.status == TaskStatus.ACTIVE).count():\n"
            '            error_output("No task is active.")\n\n        next_event',
        ),
        (
            "            start_date=start_dt,\n        )",
            "            start_date=start_dt,\n            cfg=_wc,\n        )",
        ),
    ],
    "core/engine.py": [
        (
            "                result.bankrupt = True\n                break\n\n        elif",
            "                result.bankrupt = True\n"
            '            result.wake_events.append({"type": "monthly_payroll"})\n'
            "            break\n\n        elif",
        )
    ],
    "cli/employee_commands.py": [
        ('                "employee_id": str(emp.id),\n', ""),
        ('"skills": skill_map', '"skill_rates": skill_map'),
    ],
    "cli/market_commands.py": [
        ("import Domain", "import CompanyPrestige, Domain"),
        (
            "    required_prestige_lte: Optional[int] = typer.Option("
            'None, "--required-prestige-lte", help="Max required prestige"),\n',
            "",
        ),
        (
            "        if required_prestige_lte is not None:\n"
            "            query = query.filter(Task.required_prestige <= required_prestige_lte)\n",
            "        highest = max(float(one.prestige_level) for one in db.query(CompanyPrestige))\n"
            "        query = query.filter(Task.required_prestige <= highest)\n",
        ),
    ],
    "cli/task_commands.py": [
        (
            '@task_app.command("assign")\n',
            '@task_app.command("assign")\n'
            "def assign_by_name(\n"
            '    task_id: str = typer.Option(..., "--task-id"), employees: str = typer.Option(..., "--employees")\n'
            "):\n"
            "    import contextlib, io\n"
            '    for name in employees.split(","):\n'
            "        with get_db() as db:\n"
            "            found = db.query(Employee).filter(Employee.name == name.strip()).one_or_none()\n"
            "        if found is None:\n"
            "            error_output(f\"Employee '{name}' not found.\")\n"
            "        with contextlib.redirect_stdout(io.StringIO()) as said:\n"
            "            task_assign(task_id=task_id, employee_id=str(found.id))\n"
            '    print(said.getvalue(), end="")\n\n\n',
        )
    ],
}
"""File -> pairs of a text, which it has once, and what stands there instead."""

ADDED = {
    "db/models/client.py": """
from sqlalchemy import String
from sqlalchemy.orm import mapped_column
from ..base import Base

class Client(Base):
    __tablename__ = "clients"
    name = mapped_column(String(255), primary_key=True)
""",
    "cli/client_commands.py": """
import typer
from ..db.models.client import Client
from . import get_db, json_output

client_app = typer.Typer()

@client_app.command("list")
def client_list():
    with get_db() as db:
        json_output({"clients": [{"name": one.name, "trust_level": 0.0} for one in db.query(Client)]})

@client_app.command("history")
def client_history():
    json_output({"client_history": []})
""",
}


def make(place: Path) -> Path:
    """Make the environment in `place`; the path of its `yc-bench`."""
    builder = venv.EnvBuilder(symlinks=True)
    builder.create(place)
    python = place / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    # The package comes before, its dependencies from where they are installed.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    original = Path(yc_bench.__path__[0])
    package = site / "yc_bench"
    shutil.copytree(original, package, ignore=shutil.ignore_patterns("__pycache__"))
    for preset in (package / "config" / "presets").glob("*.toml"):
        if preset.stem != "default":
            preset.unlink()
    for name, edits in EDITS.items():
        text = (package / name).read_text()
        for old, new in edits:
            if text.count(old) != 1:
                raise ValueError(f"{name} of the installed yc-bench has {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        (package / name).write_text(text)
    for name, text in ADDED.items():
        (package / name).write_text(text.lstrip())
    compileall.compile_dir(package, quiet=1)
    script = place / "bin" / "yc-bench"
    script.write_text(f"#!{python}\nimport sys\nfrom yc_bench.cli import app_main\nsys.exit(app_main())\n")
    script.chmod(0o755)
    return script
