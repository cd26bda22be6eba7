//! Request classes: which calls are expected to take alike on one endpoint.
//!
//! A class is a canonical string of the method, the bucket of the message size and the configured
//! headers, `/shop.Cart/Get;bytes=1024..16384;x-tier=gold`; without its size it is a *kind*. Strings
//! cross processes; in here a class is a small integer, valid for one *class epoch*. Index 0 is
//! [`OTHER`], which holds every call of no class of its own.
//!
//! A class is admitted after its first answer that is not UNIMPLEMENTED, so that paths which nobody
//! serves cannot fill the table. Where there is no room the least used one goes, if hardly anybody
//! uses it any more; else the newcomer shares `other`, and is counted.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName};
use parking_lot::Mutex;

use crate::attempt::RequestClass;
use crate::config::RequestClassConfig;
use crate::hash::{hash, mix};
use crate::streaming::Method;

/// Index and name of the class of calls that have none of their own.
pub const OTHER: u32 = 0;
const OTHER_NAME: &str = "other";

/// Classes times endpoints of a service at most.
pub const CELLS_MAX: usize = 65_536;

/// Bytes of a method that can be a class.
const METHOD_BYTES_MAX: usize = 256;

/// Bytes of a header value, as written, that tell calls apart.
const VALUE_BYTES_MAX: usize = 64;

/// Calls of unknown classes whose answers are awaited.
const WAITING_MAX: usize = 256;

/// What is kept of a class's use from one window to the next.
const USE_KEPT: f32 = 0.98;

/// Use below which a class makes room for another: a minute without a call after a single one.
const USE_MIN: f32 = 0.3;

/// Width of a bucket without a lower or an upper bound, for its middle.
const OPEN_WIDTH: f64 = 16.0;

/// What is known of a call when it is classified.
#[derive(Debug, Clone, Copy)]
pub struct Traits<'a> {
    /// `:path`.
    pub path: &'a str,
    /// Length of its first message, if that was there.
    pub message_bytes: Option<u64>,
    /// Request headers.
    pub headers: &'a HeaderMap,
    /// Time until its deadline.
    pub timeout: Option<Duration>,
}

/// How the calls of a service are told apart.
#[derive(Debug)]
pub struct Classifier {
    sizes: Box<[u64]>,
    headers: Box<[HeaderName]>,
    priority: Option<HeaderName>,
    deadlines_ms: Box<[u64]>,
}

/// A class by its names.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// Canonical string.
    pub class: Arc<str>,
    /// The same without the message size.
    pub kind: Arc<str>,
    /// Geometric middle of the bucket of message sizes; `None` where it is not known.
    pub size_bytes: Option<f64>,
}

impl Classifier {
    /// From a valid configuration.
    #[must_use]
    pub fn new(config: &RequestClassConfig) -> Self {
        let name = |name: &String| HeaderName::from_bytes(name.as_bytes()).ok();
        Self {
            sizes: config.message_bytes_buckets.as_slice().into(),
            headers: config.headers.iter().filter_map(name).collect(),
            priority: config.priority_header.as_ref().and_then(name),
            deadlines_ms: config.deadline_buckets_ms.as_slice().into(),
        }
    }

    /// Whether the length of a message tells calls apart.
    #[must_use]
    pub fn reads_sizes(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// The class of a call if it is admitted, else [`OTHER`]; nothing is noted.
    #[must_use]
    pub fn known(&self, set: &ClassSet, traits: &Traits<'_>) -> RequestClass {
        RequestClass {
            index: set.find(self.key(traits)).unwrap_or(OTHER),
            epoch: set.epoch,
            unknown: 0,
        }
    }

    /// A number per class, the same for every call of it; never 0. Two classes that have one by
    /// chance are taken for one.
    fn key(&self, traits: &Traits<'_>) -> u64 {
        let mut key = Method::of_path(traits.path).number();
        if self.reads_sizes() {
            let bucket = traits.message_bytes.map(|bytes| bucket(&self.sizes, bytes));
            key = mix(key ^ bucket.map_or(0, |bucket| bucket as u64 + 1));
        }
        for name in self.headers.iter().chain(&self.priority) {
            let value = traits.headers.get(name).map(|value| hash(value.as_bytes()));
            key = mix(key ^ value.unwrap_or(1));
        }
        if !self.deadlines_ms.is_empty() {
            let bucket = milliseconds(traits).map(|ms| bucket(&self.deadlines_ms, ms));
            key = mix(key ^ bucket.map_or(0, |bucket| bucket as u64 + 1));
        }
        key.max(1)
    }

    /// The class by its names; `None` for a method too long to be one.
    fn describe(&self, traits: &Traits<'_>) -> Option<Described> {
        if traits.path.len() > METHOD_BYTES_MAX {
            return None;
        }
        let mut rest = String::new();
        for name in &self.headers {
            if let Some(value) = traits.headers.get(name) {
                let _ = write!(rest, ";{name}=");
                encode(value.as_bytes(), VALUE_BYTES_MAX, &mut rest);
            }
        }
        if let Some(value) = self.priority.as_ref().and_then(|at| traits.headers.get(at)) {
            rest.push_str(";priority=");
            encode(value.as_bytes(), VALUE_BYTES_MAX, &mut rest);
        }
        if !self.deadlines_ms.is_empty() {
            let range = milliseconds(traits).map(|ms| range(&self.deadlines_ms, ms, "ms"));
            let _ = write!(rest, ";deadline={}", range.as_deref().unwrap_or("none"));
        }
        let mut method = String::new();
        encode(traits.path.as_bytes(), usize::MAX, &mut method);
        let kind = format!("{method}{rest}");
        let (class, size_bytes) = if self.reads_sizes() {
            let bytes = traits.message_bytes;
            let size = bytes.map(|bytes| range(&self.sizes, bytes, ""));
            let size = size.as_deref().unwrap_or("unknown");
            let class = format!("{method};bytes={size}{rest}");
            (class, bytes.map(|bytes| middle(&self.sizes, bytes)))
        } else {
            (kind.clone(), None)
        };
        Some(Described {
            class: class.into(),
            kind: kind.into(),
            size_bytes,
        })
    }
}

fn milliseconds(traits: &Traits<'_>) -> Option<u64> {
    let timeout = traits.timeout?;
    Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
}

/// How many bounds a value has reached.
fn bucket(bounds: &[u64], value: u64) -> usize {
    bounds.partition_point(|bound| *bound <= value)
}

/// The bucket of a value as text: `..1024`, `1024..16384`, `16384..`; lower bounds belong to it.
fn range(bounds: &[u64], value: u64, unit: &str) -> String {
    let upper = bucket(bounds, value);
    let text = |bound: &u64| format!("{bound}{unit}");
    let low = upper.checked_sub(1).map(|lower| text(&bounds[lower]));
    let high = bounds.get(upper).map(text);
    format!("{}..{}", low.unwrap_or_default(), high.unwrap_or_default())
}

/// Geometric middle of the bucket of a value.
fn middle(bounds: &[u64], value: u64) -> f64 {
    let upper = bucket(bounds, value);
    let low = upper.checked_sub(1).map(|lower| bounds[lower] as f64);
    let high = bounds.get(upper).map(|bound| *bound as f64);
    match (low, high) {
        (Some(low), Some(high)) => (low * high).sqrt(),
        (Some(low), None) => low * OPEN_WIDTH.sqrt(),
        (None, Some(high)) => high / OPEN_WIDTH.sqrt(),
        (None, None) => 0.0, // no bounds: nobody asks
    }
}

/// Percent-encodes what would not be plain text between `;` and `=`. Stops before `most` bytes are
/// exceeded.
fn encode(bytes: &[u8], most: usize, out: &mut String) {
    let start = out.len();
    for byte in bytes {
        let plain = (b'!'..=b'~').contains(byte) && !b";=%".contains(byte);
        if out.len() - start + if plain { 1 } else { 3 } > most {
            return;
        }
        if plain {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// One admitted class.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its names.
    pub names: Described,
    /// Index of its kind.
    pub kind: u32,
    /// Epoch since which its index has meant it.
    since: u32,
}

/// The classes of one epoch.
#[derive(Debug)]
pub struct ClassSet {
    epoch: u32,
    entries: Box<[Entry]>,
    /// Open addressing, a power of two of places, at most half of them taken; key 0 is free.
    places: Box<[(u64, u32)]>,
    /// A newcomer would find no room.
    closed: AtomicBool,
}

impl ClassSet {
    fn new(epoch: u32, entries: Vec<Entry>, keys: &HashMap<u64, u32>) -> Self {
        let size = (2 * keys.len()).next_power_of_two().max(2);
        let mut places = vec![(0, OTHER); size];
        for (key, index) in keys {
            let mut place = *key as usize & (size - 1);
            while places[place].0 != 0 {
                place = (place + 1) & (size - 1);
            }
            places[place] = (*key, *index);
        }
        Self {
            epoch,
            entries: entries.into(),
            places: places.into(),
            closed: AtomicBool::new(false),
        }
    }

    /// Nothing but [`OTHER`].
    pub(crate) fn none() -> Arc<Self> {
        Arc::clone(Interner::new().set())
    }

    /// Rises with every change of the set.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.into()
    }

    /// Every class, in index order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The index of a key.
    fn find(&self, key: u64) -> Option<u32> {
        let mask = self.places.len() - 1;
        let mut place = key as usize & mask;
        loop {
            match self.places[place] {
                (0, _) => return None,
                (found, index) if found == key => return Some(index),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// Index and kind that a call has in this epoch: those of its class, or of [`OTHER`] if the
    /// index has been given to another class since the call was classified.
    #[must_use]
    pub fn place(&self, class: RequestClass) -> (u32, u32) {
        match self.entries.get(class.index as usize) {
            Some(entry) if entry.since <= class.epoch => (class.index, entry.kind),
            _ => (OTHER, OTHER),
        }
    }

    /// The index of a canonical string.
    #[must_use]
    pub fn index_of(&self, class: &str) -> Option<u32> {
        let found = self
            .entries
            .iter()
            .position(|entry| &*entry.names.class == class);
        found.map(|index| index as u32)
    }

    /// A JSON list in index order.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let rows = self.entries.iter().map(|entry| {
            serde_json::json!({
                "class": &*entry.names.class,
                "kind": &*entry.names.kind,
                "kind_index": entry.kind,
                "size_bytes": entry.names.size_bytes,
            })
        });
        serde_json::Value::Array(rows.collect())
            .to_string()
            .into_bytes()
    }
}

/// Calls of classes that are not admitted yet.
#[derive(Debug, Default)]
pub struct Newcomers {
    waiting: Mutex<Waiting>,
    /// Some are ready.
    due: AtomicBool,
    /// Calls that share `other` because there is no room for a class of their own.
    pub folded: AtomicU64,
    /// Classes that made room for others.
    pub evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    known: HashMap<u64, Described>,
    /// Keys of `known`, oldest first; some may be gone.
    order: VecDeque<u64>,
    ready: Vec<(u64, Described)>,
}

impl Newcomers {
    /// Classifies a call. The second value: it shares `other` for lack of room.
    #[must_use]
    pub fn classify(
        &self,
        set: &ClassSet,
        classifier: &Classifier,
        traits: &Traits<'_>,
    ) -> (RequestClass, bool) {
        let key = classifier.key(traits);
        let mut class = RequestClass {
            index: OTHER,
            epoch: set.epoch,
            unknown: 0,
        };
        if let Some(index) = set.find(key) {
            class.index = index;
        } else if set.closed.load(Relaxed) || !self.await_answer(key, classifier, traits) {
            self.folded.fetch_add(1, Relaxed);
            return (class, true);
        } else {
            class.unknown = key;
        }
        (class, false)
    }

    /// False if it can be no class.
    fn await_answer(&self, key: u64, classifier: &Classifier, traits: &Traits<'_>) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.known.contains_key(&key) {
            return true;
        }
        let Some(described) = classifier.describe(traits) else {
            return false;
        };
        while waiting.order.len() >= WAITING_MAX {
            // Whoever waits the longest is the likeliest to have no answer coming.
            let oldest = waiting.order.pop_front();
            oldest.and_then(|oldest| waiting.known.remove(&oldest));
        }
        waiting.known.insert(key, described);
        waiting.order.push_back(key);
        true
    }

    /// A call of an unknown class was answered; `served`: not with UNIMPLEMENTED.
    pub fn answered(&self, key: u64, served: bool) {
        let mut waiting = self.waiting.lock();
        let Some(described) = waiting.known.remove(&key) else {
            return;
        };
        waiting.order.retain(|waiting| *waiting != key);
        if served && waiting.ready.len() < WAITING_MAX {
            waiting.ready.push((key, described));
            self.due.store(true, Relaxed);
        }
    }

    /// Whether [`Newcomers::take_ready`] gives something.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    fn take_ready(&self) -> Vec<(u64, Described)> {
        self.due.store(false, Relaxed);
        std::mem::take(&mut self.waiting.lock().ready)
    }
}

/// Gives classes their indices; under its service's writer lock.
#[derive(Debug)]
pub(crate) struct Interner {
    set: Arc<ClassSet>,
    keys: HashMap<u64, u32>,
    /// Calls of late, by index.
    used: Vec<f32>,
    kinds: Vec<Option<Arc<str>>>,
}

/// Indices that mean something else from an epoch on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) classes: Vec<u32>,
    pub(crate) kinds: Vec<u32>,
}

impl Interner {
    pub(crate) fn new() -> Self {
        let other: Arc<str> = OTHER_NAME.into();
        let entry = Entry {
            names: Described {
                class: Arc::clone(&other),
                kind: Arc::clone(&other),
                size_bytes: None,
            },
            kind: OTHER,
            since: 0,
        };
        Self {
            set: Arc::new(ClassSet::new(1, vec![entry], &HashMap::new())),
            keys: HashMap::new(),
            used: vec![0.0],
            kinds: vec![Some(other)],
        }
    }

    pub(crate) fn set(&self) -> &Arc<ClassSet> {
        &self.set
    }

    /// Classes at most: what the policy allows, as far as the cells of that many endpoints fit.
    fn limit(max_classes: usize, endpoints: usize) -> usize {
        max_classes.min(CELLS_MAX / endpoints.max(1)).max(1)
    }

    /// Takes in who is ready, and keeps to the limit. `None`: nothing changed.
    pub(crate) fn update(
        &mut self,
        newcomers: &Newcomers,
        max_classes: usize,
        endpoints: usize,
    ) -> Option<Moved> {
        let limit = Self::limit(max_classes, endpoints);
        let ready = newcomers.take_ready();
        if ready.is_empty() && self.set.entries.len() <= limit {
            self.note_room(limit);
            return None;
        }
        let epoch = self.set.epoch.wrapping_add(1);
        let mut entries = self.set.entries.to_vec();
        let mut moved = Moved::default();
        while entries.len() > limit {
            self.evict(&mut entries, epoch, &mut moved, newcomers);
        }
        for (key, names) in ready {
            let known = entries
                .iter()
                .position(|entry| entry.names.class == names.class);
            if let Some(index) = known {
                // Another value that is written alike, beyond what is written of it.
                if self.keys.len() < 2 * limit {
                    self.keys.insert(key, index as u32);
                }
                continue;
            }
            if entries.len() >= limit && self.least_used().is_some_and(|(_, used)| used < USE_MIN) {
                self.evict(&mut entries, epoch, &mut moved, newcomers);
            }
            if entries.len() < limit {
                self.keys.insert(key, entries.len() as u32);
                self.used.push(1.0);
                entries.push(Entry {
                    kind: self.kind_of(&names.kind),
                    names,
                    since: epoch,
                });
            }
        }
        self.set = Arc::new(ClassSet::new(epoch, entries, &self.keys));
        self.note_room(limit);
        Some(moved)
    }

    /// Takes in how many calls each class had in a window.
    pub(crate) fn count(&mut self, calls: &[u32], max_classes: usize, endpoints: usize) {
        for (used, calls) in self.used.iter_mut().zip(calls) {
            *used = *used * USE_KEPT + *calls as f32;
        }
        self.note_room(Self::limit(max_classes, endpoints));
    }

    fn note_room(&self, limit: usize) {
        let room = self.set.entries.len() < limit
            || self.least_used().is_some_and(|(_, used)| used < USE_MIN);
        self.set.closed.store(!room, Relaxed);
    }

    fn least_used(&self) -> Option<(usize, f32)> {
        let used = self.used.iter().copied().enumerate().skip(1);
        used.min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// Takes the least used class out; the last one takes its index.
    fn evict(
        &mut self,
        entries: &mut Vec<Entry>,
        epoch: u32,
        moved: &mut Moved,
        newcomers: &Newcomers,
    ) {
        let Some((index, _)) = self.least_used() else {
            return;
        };
        newcomers.evicted.fetch_add(1, Relaxed);
        let (index, last) = (index as u32, entries.len() as u32 - 1);
        self.keys.retain(|_, at| *at != index);
        self.keys
            .values_mut()
            .filter(|at| **at == last)
            .for_each(|at| *at = index);
        let gone = entries.swap_remove(index as usize);
        self.used.swap_remove(index as usize);
        if let Some(entry) = entries.get_mut(index as usize) {
            entry.since = epoch;
        }
        moved.classes.extend([index, last]);
        if !entries.iter().any(|entry| entry.kind == gone.kind) {
            self.kinds[gone.kind as usize] = None;
            moved.kinds.push(gone.kind);
        }
    }

    fn kind_of(&mut self, kind: &Arc<str>) -> u32 {
        let known = self
            .kinds
            .iter()
            .position(|known| known.as_ref() == Some(kind));
        let free = || self.kinds.iter().position(Option::is_none);
        let index = known.or_else(free).unwrap_or(self.kinds.len());
        if index == self.kinds.len() {
            self.kinds.push(None);
        }
        self.kinds[index] = Some(Arc::clone(kind));
        index as u32
    }
}

#[cfg(test)]
mod tests;
