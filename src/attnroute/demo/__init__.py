"""A fleet of uneven endpoints, two sidecars and open-loop load on one machine: `attnroute demo`.

`world` says what is emulated and `balancers` what is compared, both as data; `endpoint` and `load`
are the processes around the sidecars, `run` builds and stops everything, `view` and `report` show
what came out. Read `run` first.
"""
