//! Scores from Python: float32 matrices by the buffer protocol.

use attnroute_dataplane::balancer::learned::trace;
use attnroute_dataplane::explain::{self, Question};
use attnroute_dataplane::score_table::{Scores, ScoresError};
use attnroute_dataplane::service::Service;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{raised, ConfigError, StaleEpochError};

/// What `publish_scores` takes, as it comes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Published<'py> {
    endpoint_epoch: u64,
    class_epoch: u64,
    cost_s: Bound<'py, PyAny>,
    table_cost_s: Bound<'py, PyAny>,
    spread: Bound<'py, PyAny>,
    probability: Bound<'py, PyAny>,
    mean_service_s: Bound<'py, PyAny>,
    concurrency: Bound<'py, PyAny>,
    sidecars: u32,
    model: String,
}

/// The same, owned.
pub(crate) struct Owned {
    endpoint_epoch: u64,
    class_epoch: u64,
    arrays: [Vec<f32>; 6],
    sidecars: u32,
    model: String,
}

impl Published<'_> {
    /// Copies the arrays, so that nobody can change them any more.
    pub(crate) fn own(self, py: Python<'_>) -> PyResult<Owned> {
        let cells = array(py, "cost_s", &self.cost_s, 2, None)?;
        let shape = Some(cells.1.as_slice());
        let matrix = |name, value| array(py, name, value, 2, shape).map(|(values, _)| values);
        let endpoints = Some(&cells.1[1..]);
        let row = |name, value| array(py, name, value, 1, endpoints).map(|(values, _)| values);
        Ok(Owned {
            endpoint_epoch: self.endpoint_epoch,
            class_epoch: self.class_epoch,
            arrays: [
                matrix("table_cost_s", &self.table_cost_s)?,
                matrix("spread", &self.spread)?,
                matrix("probability", &self.probability)?,
                row("mean_service_s", &self.mean_service_s)?,
                row("concurrency", &self.concurrency)?,
                cells.0,
            ],
            sidecars: self.sidecars,
            model: self.model,
        })
    }
}

impl Owned {
    pub(crate) fn scores(&self) -> Scores<'_> {
        let [table_cost_s, spread, probability, mean_service_s, concurrency, cost_s] = &self.arrays;
        Scores {
            endpoint_epoch: self.endpoint_epoch,
            class_epoch: self.class_epoch,
            cost_s,
            table_cost_s,
            spread,
            probability,
            mean_service_s,
            concurrency,
            sidecars: self.sidecars,
            model: &self.model,
        }
    }
}

/// Values and shape of a C-contiguous float32 array.
fn array(
    py: Python<'_>,
    name: &str,
    value: &Bound<'_, PyAny>,
    dimensions: usize,
    expected: Option<&[usize]>,
) -> PyResult<(Vec<f32>, Vec<usize>)> {
    let wrong = |found: String| {
        let expected = match expected {
            Some(shape) => format!("float32 of shape {shape:?}, C-contiguous"),
            None => format!("float32 of {dimensions} dimensions, C-contiguous"),
        };
        PyValueError::new_err(format!("`{name}` is {found}, expected {expected}"))
    };
    let Ok(buffer) = PyBuffer::<f32>::get(value) else {
        return Err(wrong(format!("no such array: {}", value.get_type())));
    };
    let shape = buffer.shape().to_vec();
    if !buffer.is_c_contiguous() {
        return Err(wrong("not contiguous".into()));
    }
    if shape.len() != dimensions || expected.is_some_and(|expected| expected != shape) {
        return Err(wrong(format!("of shape {shape:?}")));
    }
    Ok((buffer.to_vec(py)?, shape))
}

pub(crate) fn refused(error: ScoresError) -> PyErr {
    match error {
        ScoresError::Stale { .. } => StaleEpochError::new_err(error.to_string()),
        ScoresError::Invalid(message) => PyValueError::new_err(message),
    }
}

pub(crate) fn none() -> PyErr {
    PyValueError::new_err("no scores were given")
}

/// The pick that would be made now, as JSON.
pub(crate) fn explain<'py>(
    py: Python<'py>,
    service: &Service,
    question: &[u8],
    now_ns: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let answer = Question::parse(question)
        .and_then(|question| explain::explain(service, &question, now_ns))
        .map_err(|error| raised(error.into()))?;
    Ok(PyBytes::new(py, answer.to_string().as_bytes()))
}

/// Computes a recorded pick again.
#[pyfunction]
pub(crate) fn replay<'py>(py: Python<'py>, record: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let record = serde_json::from_slice(record)
        .map_err(|error| ConfigError::new_err(("record", error.to_string())))?;
    let answer = trace::replay(&record).map_err(|error| raised(error.into()))?;
    Ok(PyBytes::new(py, answer.to_string().as_bytes()))
}
