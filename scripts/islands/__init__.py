"""
Check that operators, commands and documented names reach all code of the package.

``python -m scripts.islands --roots FILE`` prints each function, class and method that only tests use.
The check parses the code and imports none of it.

It starts at the roots: ``__all__`` of the package, the modules of Airflow's surface, the migrations, the entry points
of ``pyproject.toml``, the example Dags, and the names in the file of roots, which users call or implement.
``reach`` describes how live code makes other code live.

The check takes too much for live where names are equal: a method is live if live code uses any attribute of its name,
and a definition if a local variable has its name. It takes for dead what is called under a name computed at run time.
"""
