//! The simulator, for Python: JSON in, JSON out, without the GIL while it runs.

use std::sync::Arc;

use attnroute_dataplane::error::Error;
use attnroute_simulator::scenario::Scenario;
use attnroute_simulator::Balancer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

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
    let json =
        serde_json::to_vec(&outcome).map_err(|error| DataPlaneError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &json))
}
