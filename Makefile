PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test browser check format clean docs types notebooks dist dist-check release

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.demo  ## Train on wrongly labelled digits: cross entropy, a robust loss, and the adjusted one
	@$(BIN)/narl demo $(ARGS)

# Tests start many commands, which start sooner from compiled modules, also where the environment says to keep none.
test: $(VENV)/.dev  ## Run the tests, in two processes or in JOBS; without Chromium: NARL_NO_BROWSER=1
	@PYTHONDONTWRITEBYTECODE= CHROMIUM=$$(sh scripts/chromium.sh) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

browser: $(VENV)/.dev  ## Run only the tests of the pages in Chromium, which is installed if there is none
	@CHROMIUM=$$(sh scripts/chromium.sh) $(BIN)/python -m pytest -m browser $(ARGS)

docs: $(VENV)/.docs  ## Build the site into build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet $(ARGS)
	@echo "Open build/site/index.html"

check: $(VENV)/.dev  ## Format, lint, strict types, room imports, exported names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_public_names.py

types: $(VENV)/.dev  ## Check a user's code against narl's types, with pyright's strict mode
	@$(INSTALL) 'pyright[nodejs]'
	$(BIN)/pyright --pythonpath $(BIN)/python examples/typed.py

notebooks: $(VENV)/.dev  ## Run the notebooks and keep what they show
	@$(INSTALL) nbclient ipykernel
	@$(BIN)/python scripts/notebooks.py $(ARGS)

dist: $(VENV)/.created  ## Build the source archive and the wheel into dist/, and look into them
	@$(INSTALL) build
	@$(BIN)/python scripts/dist.py $(ARGS)

dist-check: dist  ## Install the wheel into clean environments, with each extra alone, and use it: 15 minutes, 2 GB
	@$(BIN)/python scripts/install_check.py dist/*.whl $(ARGS)

release:  ## Check all, build and tag VERSION; it is not published
	@test -n "$(VERSION)" || { echo "Which one? make release VERSION=0.2.0" >&2; exit 1; }
	@$(PYTHON) scripts/release.py $(VERSION)

format: $(VENV)/.dev  ## Rewrite the code in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "narl needs Python 3.10 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing narl into $(VENV) (once, a few minutes)"
	@$(INSTALL) -e '.[figures,report,review]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing narl and its development tools into $(VENV) (once, a few minutes)"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing what builds the site into $(VENV)"
	@$(INSTALL) -e '.[docs]'
	@touch $@
