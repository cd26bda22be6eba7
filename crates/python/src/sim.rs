//! The simulator, for Python: JSON in, JSON out, without the GIL while it runs.

use std::sync::Arc;

use attnroute_dataplane::error::Error;
use attnroute_dataplane::service::Service;
use attnroute_simulator::outcome::Outcome;
use attnroute_simulator::scenario::Scenario;
use attnroute_simulator::Balancer;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::rows::{self, WindowRows};
use crate::scores::{self, Published};
use crate::{raised, DataPlaneError};

/// Checks a compiled scenario: calls per second that its endpoints can do, and that are offered.
#[pyfunction]
pub(crate) fn check_scenario(py: Python<'_>, scenario: &[u8]) -> PyResult<(f64, f64)> {
    py.detach(|| {
        let scenario = Scenario::parse(scenario)?;
        Ok((scenario.capacity_rps(), scenario.offered_rps()))
    })
    .map_err(|error| raised(Error::Config(error)))
}

/// Checks the balancer of a compiled policy, or the oracle.
#[pyfunction]
pub(crate) fn check_balancer(balancer: &[u8]) -> PyResult<()> {
    Balancer::parse(balancer).map(drop).map_err(raised)
}

/// Plays a compiled scenario once.
#[pyfunction]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    scenario: &[u8],
    balancer: &[u8],
    seed: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let outcome = py
        .detach(|| {
            let scenario = Scenario::parse(scenario)?;
            let balancer = Balancer::parse(balancer)?;
            Ok(attnroute_simulator::simulate(
                Arc::new(scenario),
                &balancer,
                seed,
            ))
        })
        .map_err(raised)?;
    encoded(py, &outcome)
}

/// A run that Python drives step by step, to learn from its sidecars and to give them scores.
#[pyclass(frozen, module = "attnroute._dataplane")]
pub(crate) struct Simulation {
    inner: Mutex<Option<attnroute_simulator::Simulation>>,
}

impl Simulation {
    fn with<T>(
        &self,
        act: impl FnOnce(&mut attnroute_simulator::Simulation) -> PyResult<T>,
    ) -> PyResult<T> {
        match self.inner.lock().as_mut() {
            Some(run) => act(run),
            None => Err(DataPlaneError::new_err("the run is finished")),
        }
    }

    fn with_service<T>(
        &self,
        sidecar: usize,
        act: impl FnOnce(&Service, u64) -> PyResult<T>,
    ) -> PyResult<T> {
        self.with(|run| {
            let missing = || DataPlaneError::new_err(format!("there is no sidecar {sidecar}"));
            let service = run.service(sidecar).ok_or_else(missing)?;
            service.maintain(run.now_ns());
            act(service, run.now_ns())
        })
    }
}

#[pymethods]
impl Simulation {
    #[new]
    fn new(py: Python<'_>, scenario: &[u8], balancer: &[u8], seed: u64) -> PyResult<Self> {
        let run = py
            .detach(|| {
                let scenario = Arc::new(Scenario::parse(scenario)?);
                let balancer = Balancer::parse(balancer)?;
                Ok(attnroute_simulator::Simulation::new(
                    scenario, &balancer, seed,
                ))
            })
            .map_err(raised)?;
        Ok(Self {
            inner: Mutex::new(Some(run)),
        })
    }

    fn run_until(&self, py: Python<'_>, until_ns: u64) -> PyResult<bool> {
        py.detach(|| self.with(|run| Ok(run.run_until(until_ns))))
    }

    fn endpoints<'py>(
        &self,
        py: Python<'py>,
        sidecar: usize,
    ) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        self.with_service(sidecar, |service, _| {
            let snapshot = service.snapshot();
            let list = rows::describe(&snapshot.members);
            Ok((snapshot.epoch, PyBytes::new(py, &list)))
        })
    }

    fn classes<'py>(
        &self,
        py: Python<'py>,
        sidecar: usize,
    ) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        self.with_service(sidecar, |service, _| Ok(rows::classes(py, service)))
    }

    fn take_window<'py>(&self, py: Python<'py>, sidecar: usize) -> PyResult<WindowRows<'py>> {
        self.with_service(sidecar, |service, now_ns| {
            Ok(rows::window(py, &service.take_window(now_ns)))
        })
    }

    #[pyo3(signature = (sidecar, **scores))]
    fn publish_scores(
        &self,
        py: Python<'_>,
        sidecar: usize,
        scores: Option<Published<'_>>,
    ) -> PyResult<u64> {
        let scores = scores.ok_or_else(scores::none)?.own(py)?;
        self.with_service(sidecar, |service, now_ns| {
            service
                .publish_scores(&scores.scores(), now_ns)
                .map_err(scores::refused)
        })
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let run = self.inner.lock().take();
        let run = run.ok_or_else(|| DataPlaneError::new_err("the run is finished"))?;
        let outcome = py.detach(|| run.finish());
        encoded(py, &outcome)
    }
}

fn encoded<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyBytes>> {
    let json =
        serde_json::to_vec(outcome).map_err(|error| DataPlaneError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &json))
}
