//! The forward path: route, pick, send, relay, observe. Read this file first.
//!
//! A call is taken over here and routed; a [`Call`] picks its endpoint and opens the stream, at once
//! and without a wait, while the client's connection hands it over: nearly every call finds a
//! connection that has room. From then on an `Exchange` moves frames in both directions until the
//! answer is complete. Bytes pass through: messages are never decoded, buffered whole or joined.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::RecvStream;
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Method, Request, Uri};

use crate::call::Call;
use crate::call_record::CallRecord;
use crate::exchange::CallGuard;
use crate::fault::Fault;
use crate::grpc::{self, Code};
use crate::inbound::answers::Question;
use crate::listener::Way;
use crate::route::check_authority;
use crate::runtime::{Routing, Thread};
use crate::server::Slot;
use crate::service::Service;
use crate::stats::{Limit, Stats};

/// Takes over one accepted call: answers it, or leaves it to a task that will.
pub(crate) fn serve(
    thread: &Rc<Thread>,
    way: &Way,
    slot: Slot,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let received_ns = thread.clock.now_ns();
    let (mut head, body) = request.into_parts();
    let authority = match is_call(&head.method) {
        true => authority_of(&mut head, way),
        false => Err(()),
    };
    let Ok(authority) = authority else {
        // A malformed request gets no answer, and only its stream ends (H2-38).
        thread.shared.stats.malformed_requests.fetch_add(1, Relaxed);
        respond.send_reset(h2::Reason::PROTOCOL_ERROR);
        return;
    };
    let (admitted, sampled) = {
        let routing = thread.shared.routing.load();
        let sampled = routing.sampling.draw(&mut thread.lots.borrow_mut());
        let stats = &thread.shared.stats;
        let admitted = admit(stats, &routing, way, &head, authority.as_ref());
        (admitted, sampled)
    };
    let record = sampled.is_noted().then(|| {
        Box::new(CallRecord::new(
            sampled,
            &head.uri,
            authority.as_ref(),
            &head.headers,
        ))
    });
    let service = match admitted {
        Ok(service) => service,
        Err(fault) => {
            return CallGuard::new(thread, None, received_ns, slot, record).refuse(respond, &fault);
        }
    };
    if let Some(question) = Question::of(&service, head.uri.path()) {
        return question.answer(thread, &way.listener, service, slot, body, respond);
    }
    let taken = Some(Arc::clone(&service));
    let guard = CallGuard::new(thread, taken, received_ns, slot, record);
    if is_reset(&mut respond) {
        return guard.end(Code::Cancelled);
    }
    match Call::prepare(thread, service, &mut head, received_ns, sampled) {
        Ok(call) => call.enter(guard, head, body, respond),
        Err(fault) => guard.refuse(respond, &fault),
    }
}

/// Whether a request may be a call. There is no tunnel in HTTP/2, and no method with the name of its
/// preface; either would make an endpoint see something else than the sidecar does (SE-08).
fn is_call(method: &Method) -> bool {
    method != Method::CONNECT && method.as_str() != "PRI"
}

/// Whether the client has reset the call already. No attempt starts for such a call, or resets as
/// fast as a client can write them would be as much work for the endpoints (SE-01).
fn is_reset(respond: &mut SendResponse<Bytes>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    respond.poll_reset(&mut cx).is_ready()
}

/// Which service takes the call, if the request itself is within limits.
fn admit(
    stats: &Stats,
    routing: &Routing,
    way: &Way,
    head: &Parts,
    authority: Option<&Authority>,
) -> Result<Arc<Service>, Fault> {
    let limit = routing.limits.max_header_list_bytes;
    let bytes = grpc::header_list_bytes(&head.headers);
    if bytes > limit as usize {
        stats.hit(Limit::HeaderList);
        return Err(Fault::HeaderList { bytes, limit });
    }
    let authority = authority.map(Authority::as_str);
    way.service(routing, authority)
        .cloned()
        .ok_or_else(|| Fault::UnknownAuthority {
            authority: way.asked(authority).unwrap_or_default().to_owned(),
            known: Arc::clone(&routing.known_authorities),
        })
}

/// The authority of the call: `:authority`, else `host`, else none (the listener's default
/// service); written into the URI where it was missing, because the endpoint needs one.
fn authority_of(head: &mut Parts, way: &Way) -> Result<Option<Authority>, ()> {
    let host = head.headers.get(http::header::HOST);
    if let Some(authority) = head.uri.authority() {
        check_authority(authority.as_str()).map_err(|_| ())?;
        if host.is_some_and(|host| {
            !host
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes())
        }) {
            return Err(());
        }
        return Ok(Some(authority.clone()));
    }
    let authority: Option<Authority> = match host {
        Some(host) => {
            let host = host.to_str().map_err(|_| ())?;
            check_authority(host).map_err(|_| ())?;
            Some(host.parse().map_err(|_| ())?)
        }
        None => None,
    };
    let mut uri = std::mem::take(&mut head.uri).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(
        authority
            .clone()
            .unwrap_or_else(|| way.listener.default_authority()),
    );
    head.uri = Uri::from_parts(uri).map_err(|_| ())?;
    Ok(authority)
}
