//! The binding: Python calls Rust, never the reverse.
//!
//! Configuration crosses as JSON bytes, telemetry as fixed-layout rows; no Python object is kept,
//! no callback exists, and every call that can block releases the GIL.

mod rows;
mod scores;
mod sim;

use std::collections::HashMap;
use std::time::Duration;

use attnroute_dataplane::attempt::{Probe, RequestClass, RequestInfo, Sample};
use attnroute_dataplane::endpoint::Outcome;
use attnroute_dataplane::error::{ConfigError as BadConfig, Error};
use attnroute_dataplane::grpc::Code;
use attnroute_dataplane::logging::{self, LogFormat};
use attnroute_dataplane::{metrics, runtime};
use parking_lot::Mutex;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::rows::WindowRows;
use crate::scores::Published;

create_exception!(_dataplane, DataPlaneError, PyException);
create_exception!(_dataplane, ConfigError, DataPlaneError);
create_exception!(_dataplane, BindError, DataPlaneError);
create_exception!(_dataplane, NotRunningError, DataPlaneError);
create_exception!(_dataplane, StaleEpochError, DataPlaneError);

fn raised(error: Error) -> PyErr {
    match error {
        Error::Config(BadConfig { path, message }) => ConfigError::new_err((path, message)),
        Error::Bind(error) => BindError::new_err((
            error.listener,
            error.address,
            error.source_position,
            error.cause.to_string(),
        )),
        Error::NotRunning => NotRunningError::new_err("the data plane is not running"),
        Error::Thread(error) => DataPlaneError::new_err(error.to_string()),
    }
}

/// Forward path and pickers.
#[pyclass(frozen, module = "attnroute._dataplane")]
struct DataPlane {
    inner: runtime::DataPlane,
    process: u32,
}

impl DataPlane {
    /// Threads do not survive a fork, so a child must make its own.
    fn inner(&self) -> PyResult<&runtime::DataPlane> {
        if self.process == std::process::id() {
            return Ok(&self.inner);
        }
        Err(NotRunningError::new_err(
            "the data plane was made before a fork; make a new one",
        ))
    }
}

#[pymethods]
impl DataPlane {
    #[new]
    #[pyo3(signature = (config, seed, log_format = "json"))]
    fn new(config: &[u8], seed: u64, log_format: &str) -> PyResult<Self> {
        let format = match log_format {
            "json" => LogFormat::Json,
            "text" => LogFormat::Text,
            other => {
                let message = format!("found `{other}`, expected `json` or `text`");
                return Err(ConfigError::new_err(("log_format", message)));
            }
        };
        logging::start(format);
        let inner = runtime::DataPlane::new(config, seed).map_err(raised)?;
        Ok(Self {
            inner,
            process: std::process::id(),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<HashMap<String, String>> {
        let inner = self.inner()?;
        py.detach(|| inner.start()).map_err(raised)
    }

    fn apply_policy(&self, py: Python<'_>, config: &[u8]) -> PyResult<u64> {
        let inner = self.inner()?;
        py.detach(|| inner.apply_policy(config)).map_err(raised)
    }

    fn bound(&self) -> PyResult<HashMap<String, String>> {
        Ok(self.inner()?.bound())
    }

    fn apply_endpoints(&self, py: Python<'_>, service: &str, endpoints: &[u8]) -> PyResult<u64> {
        let inner = self.inner()?;
        py.detach(|| inner.apply_endpoints(service, endpoints))
            .map_err(raised)
    }

    fn endpoints<'py>(
        &self,
        py: Python<'py>,
        service: &str,
    ) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let service = self.inner()?.service(service).map_err(raised)?;
        let snapshot = service.snapshot();
        let json = py.detach(|| rows::describe(&snapshot.members));
        Ok((snapshot.epoch, PyBytes::new(py, &json)))
    }

    fn snapshot<'py>(
        &self,
        py: Python<'py>,
        service: &str,
    ) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let service = self.inner()?.service(service).map_err(raised)?;
        let snapshot = service.snapshot();
        let now_ns = self.inner()?.now_ns();
        let rows = py.detach(|| rows::encode(&snapshot, now_ns));
        Ok((snapshot.epoch, PyBytes::new(py, &rows)))
    }

    fn scores_in_force<'py>(
        &self,
        py: Python<'py>,
        service: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let service = self.inner()?.service(service).map_err(raised)?;
        let snapshot = service.snapshot();
        let now_ns = self.inner()?.now_ns();
        let json = py.detach(|| rows::scores_in_force(&snapshot, now_ns));
        Ok(PyBytes::new(py, &json))
    }

    fn classes<'py>(&self, py: Python<'py>, service: &str) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let service = self.inner()?.service(service).map_err(raised)?;
        Ok(rows::classes(py, &service))
    }

    fn take_window<'py>(&self, py: Python<'py>, service: &str) -> PyResult<WindowRows<'py>> {
        let inner = self.inner()?;
        let service = inner.service(service).map_err(raised)?;
        let window = py.detach(|| service.take_window(inner.now_ns()));
        Ok(rows::window(py, &window))
    }

    fn explain<'py>(
        &self,
        py: Python<'py>,
        service: &str,
        question: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let inner = self.inner()?;
        let service = inner.service(service).map_err(raised)?;
        scores::explain(py, &service, question, inner.now_ns())
    }

    #[pyo3(signature = (service, **scores))]
    fn publish_scores(
        &self,
        py: Python<'_>,
        service: &str,
        scores: Option<Published<'_>>,
    ) -> PyResult<u64> {
        let inner = self.inner()?;
        let service = inner.service(service).map_err(raised)?;
        let scores = scores.ok_or_else(scores::none)?.own(py)?;
        py.detach(|| service.publish_scores(&scores.scores(), inner.now_ns()))
            .map_err(scores::refused)
    }

    fn reported(&self, service: &str, endpoint: &str, report: &[u8]) -> PyResult<bool> {
        self.inner()?
            .reported(service, endpoint, report)
            .map_err(raised)
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let inner = self.inner()?;
        let text = py.detach(|| metrics::exposition(inner));
        Ok(PyBytes::new(py, text.as_bytes()))
    }

    fn recorded_picks<'py>(
        &self,
        py: Python<'py>,
        service: &str,
        after: u64,
        count: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, u64, u64)> {
        let inner = self.inner()?;
        let dropped = inner.shared().recording.dropped();
        let service = inner.service(service).map_err(raised)?;
        let found = py.detach(|| service.decisions.after(&service.name, after, count));
        Ok((PyBytes::new(py, &found.rows), found.newest, dropped))
    }

    fn take_spans<'py>(&self, py: Python<'py>, max_rows: usize) -> PyResult<Bound<'py, PyBytes>> {
        let spans = &self.inner()?.shared().spans;
        let rows = py.detach(|| spans.take(max_rows));
        Ok(PyBytes::new(py, &rows))
    }

    fn reopen_logs(&self) -> PyResult<()> {
        self.inner()?.shared().access_log.reopen();
        Ok(())
    }

    fn pending(&self) -> PyResult<Vec<String>> {
        Ok(self.inner()?.pending())
    }

    fn drain(&self, py: Python<'_>, linger_ms: u64, limit_ms: u64) -> PyResult<bool> {
        let inner = self.inner()?;
        let (linger, limit) = (
            Duration::from_millis(linger_ms),
            Duration::from_millis(limit_ms),
        );
        Ok(py.detach(|| inner.drain(linger, limit)))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner()?;
        py.detach(|| inner.stop());
        Ok(())
    }
}

/// The picker without sockets: time is an argument.
#[pyclass(frozen, module = "attnroute._dataplane")]
struct Picker {
    inner: Mutex<attnroute_dataplane::picker::Picker>,
}

#[pymethods]
impl Picker {
    #[new]
    fn new(service_config: &[u8], seed: u64) -> PyResult<Self> {
        let inner = attnroute_dataplane::picker::Picker::new(service_config, seed);
        Ok(Self {
            inner: Mutex::new(inner.map_err(raised)?),
        })
    }

    fn apply_endpoints(&self, endpoints: &[u8]) -> PyResult<u64> {
        self.inner.lock().apply_endpoints(endpoints).map_err(raised)
    }

    fn set_failing(&self, index: usize, failing: bool) -> PyResult<()> {
        self.inner
            .lock()
            .set_failing(index, failing)
            .map_err(raised)
    }

    #[pyo3(signature = (now_ns, request_class = None, key = None, path = None, message_bytes = None))]
    fn pick(
        &self,
        now_ns: u64,
        request_class: Option<u32>,
        key: Option<u64>,
        path: Option<&str>,
        message_bytes: Option<u64>,
    ) -> PyResult<(u32, &'static str)> {
        let mut inner = self.inner.lock();
        inner.maintain(now_ns);
        let class = match (request_class, path) {
            (Some(index), _) => index.into(),
            (None, Some(path)) => inner.classify(path, message_bytes),
            (None, None) => RequestClass::default(),
        };
        let request = RequestInfo {
            class,
            key,
            rule: path.map_or(0, |path| inner.rule_of(path)),
        };
        inner
            .pick(now_ns, request)
            .map(|(index, reason)| (index, reason.name()))
            .map_err(|refusal| DataPlaneError::new_err(format!("no pick: {refusal:?}")))
    }

    #[pyo3(signature = (index, now_ns, latency_ns, grpc_status, report = None, push_back_ns = None))]
    fn finished(
        &self,
        index: usize,
        now_ns: u64,
        latency_ns: u64,
        grpc_status: u32,
        report: Option<&[u8]>,
        push_back_ns: Option<u64>,
    ) -> PyResult<()> {
        let mut inner = self.inner.lock();
        let report = match report {
            Some(message) => Some(inner.decode_report(message).map_err(raised)?),
            None => None,
        };
        let sample = Sample {
            outcome: Outcome::Answered(Code::from_number(grpc_status)),
            latency_ns,
            push_back_ns,
            report: report.as_ref(),
        };
        inner.finished(index, now_ns, &sample).map_err(raised)
    }

    fn reported(&self, index: usize, now_ns: u64, report: &[u8]) -> PyResult<()> {
        let inner = self.inner.lock();
        let report = inner.decode_report(report).map_err(raised)?;
        inner.reported(index, now_ns, &report).map_err(raised)
    }

    fn probes_due(&self, now_ns: u64) -> Vec<u32> {
        self.inner.lock().probes_due(now_ns)
    }

    fn probed(&self, index: usize, now_ns: u64, inflight: u32, latency_ns: u64) -> PyResult<()> {
        let probe = Probe {
            inflight,
            latency_ns,
        };
        self.inner
            .lock()
            .probed(index, now_ns, probe)
            .map_err(raised)
    }

    #[pyo3(signature = (question, now_ns = None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        question: &[u8],
        now_ns: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut inner = self.inner.lock();
        let now_ns = now_ns.unwrap_or(inner.now_ns());
        inner.maintain(now_ns);
        scores::explain(py, inner.service(), question, now_ns)
    }

    #[pyo3(signature = (*, now_ns = None, **scores))]
    fn publish_scores(
        &self,
        py: Python<'_>,
        now_ns: Option<u64>,
        scores: Option<Published<'_>>,
    ) -> PyResult<u64> {
        let scores = scores.ok_or_else(scores::none)?.own(py)?;
        let mut inner = self.inner.lock();
        let now_ns = now_ns.unwrap_or(inner.now_ns());
        inner.maintain(now_ns);
        inner
            .service()
            .publish_scores(&scores.scores(), now_ns)
            .map_err(scores::refused)
    }

    fn classes<'py>(&self, py: Python<'py>) -> (u64, Bound<'py, PyBytes>) {
        let mut inner = self.inner.lock();
        let now_ns = inner.now_ns();
        inner.maintain(now_ns);
        rows::classes(py, inner.service())
    }

    #[pyo3(signature = (now_ns = None))]
    fn take_window<'py>(&self, py: Python<'py>, now_ns: Option<u64>) -> WindowRows<'py> {
        let mut inner = self.inner.lock();
        let now_ns = now_ns.unwrap_or(inner.now_ns());
        inner.maintain(now_ns);
        rows::window(py, &inner.service().take_window(now_ns))
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> (u64, Bound<'py, PyBytes>) {
        let inner = self.inner.lock();
        let snapshot = inner.service().snapshot();
        let rows = rows::encode(&snapshot, inner.now_ns());
        (snapshot.epoch, PyBytes::new(py, &rows))
    }
}

/// The compiled extension.
#[pymodule]
mod _dataplane {

    #[pymodule_export]
    use super::{
        BindError, ConfigError, DataPlane, DataPlaneError, NotRunningError, Picker, StaleEpochError,
    };

    #[pymodule_export]
    use super::scores::replay;

    #[pymodule_export]
    use super::sim::{check_balancer, check_scenario, simulate, Simulation};

    #[pymodule_export]
    const ABI_VERSION: u32 = 5;
}
