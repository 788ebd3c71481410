//! The queues of one priority level: who is handled next when there are more requests than seats.
//! Held by `flow_control` under one lock per level; the caller brings the time and wakes whoever is dispatched.
//! Fair queuing by virtual time: each queue is charged for the seats and seconds its requests take, and the queue that was
//! given least goes first. A flow is dealt a hand of queues and waits in the emptiest, so that a flood fills only its hand.
//! Invariant: pure (tidy: `pure_files`).

use std::{collections::VecDeque, time::Duration};

use super::{
    concurrency::Integrator,
    timing::{DEMAND_BOUNDS, REQUEST_BOUNDS, SEAT_BOUNDS, TimingRatioHistogram},
};

/// What a request is taken to last before it has.
const ESTIMATED_SERVICE_SECONDS: f64 = 0.003;

/// What a request takes: seats while it is handled, and seats for a while after it, for what follows from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Width {
    pub initial: usize,
    pub final_seats: usize,
    pub additional: Duration,
}

impl Width {
    pub const ONE: Self = Self { initial: 1, final_seats: 0, additional: Duration::ZERO };

    pub fn max_seats(self) -> usize {
        self.initial.max(self.final_seats)
    }

    /// In seat-seconds.
    fn work(self, seconds: f64) -> f64 {
        self.initial as f64 * seconds + self.final_seats as f64 * self.additional.as_secs_f64()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSettings {
    /// 0: nobody waits.
    pub queues: usize,
    pub hand_size: usize,
    pub length_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    ConcurrencyLimit,
    QueueFull,
}

/// A request that has a seat or waits for one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticket {
    pub id: u64,
    queue: Option<usize>,
    pub width: Width,
}

impl Ticket {
    /// Of a request that was never handled: nothing follows from it.
    pub fn without_effects(self) -> Self {
        Self { width: Width { additional: Duration::ZERO, ..self.width }, ..self }
    }
}

#[derive(Debug, PartialEq)]
pub enum Arrival {
    Dispatched(Ticket),
    Waiting(Ticket),
    Rejected(Rejection),
}

struct Waiting<W> {
    id: u64,
    width: Width,
    arrived_at: Duration,
    waiter: W,
}

struct Queue<W> {
    waiting: VecDeque<Waiting<W>>,
    waiting_work: f64,
    executing: usize,
    seats_in_use: usize,
    /// When, in virtual time, its next request starts.
    next_dispatch: f64,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), waiting_work: 0.0, executing: 0, seats_in_use: 0, next_dispatch: 0.0 }
    }
}

impl<W> Queue<W> {
    fn is_active(&self) -> bool {
        self.executing > 0 || !self.waiting.is_empty()
    }
}

/// One queue as the debug page shows it.
pub struct QueueFigures {
    pub index: usize,
    pub waiting: usize,
    pub executing: usize,
    pub seats_in_use: usize,
    pub next_dispatch: f64,
    pub initial_seats: usize,
    pub max_seats: usize,
    pub work: f64,
}

/// The virtual world when a request last left its queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DispatchFigures {
    pub virtual_time: f64,
    /// When, in virtual time, that request was to start.
    pub latest: f64,
    /// The least and the most of that over the queues in which somebody waited.
    pub next: (f64, f64),
    /// The same without the work that each queue has under way.
    pub next_discounted: (f64, f64),
}

/// How much of a level is in use, over time.
#[derive(Debug, Clone, Copy)]
pub struct Utilization {
    pub seats: TimingRatioHistogram,
    pub executing: TimingRatioHistogram,
    pub waiting: TimingRatioHistogram,
    pub demand: TimingRatioHistogram,
}

impl Utilization {
    fn new(now: Duration) -> Self {
        let new = |bounds| TimingRatioHistogram::new(bounds, 1.0, now);
        let (executing, waiting) = (new(REQUEST_BOUNDS), new(REQUEST_BOUNDS));
        Self { seats: new(SEAT_BOUNDS), executing, waiting, demand: new(DEMAND_BOUNDS) }
    }
}

pub struct QueueSet<W> {
    settings: QueueSettings,
    seats: usize,
    queues: Vec<Queue<W>>,
    virtual_time: f64,
    at: Duration,
    active_queues: usize,
    seats_in_use: usize,
    executing: usize,
    waiting: usize,
    seats_waiting: usize,
    next_id: u64,
    /// Where the look for the next queue begins, so that equals take turns.
    robin: usize,
    demand: Integrator,
    utilization: Utilization,
    last_dispatch: Option<DispatchFigures>,
}

impl<W> QueueSet<W> {
    pub fn new(settings: QueueSettings, seats: usize, now: Duration) -> Self {
        let mut demand = Integrator::default();
        demand.take(now.as_secs_f64());
        Self {
            settings,
            seats,
            queues: std::iter::repeat_with(Queue::default).take(settings.queues).collect(),
            virtual_time: 0.0,
            at: now,
            active_queues: 0,
            seats_in_use: 0,
            executing: 0,
            waiting: 0,
            seats_waiting: 0,
            next_id: 0,
            robin: 0,
            demand,
            utilization: Utilization::new(now),
            last_dispatch: None,
        }
    }

    /// Queues that are no longer dealt stay until they are empty.
    pub fn configure(&mut self, now: Duration, settings: QueueSettings) {
        self.settings = settings;
        let places = settings.length_max.max(1).saturating_mul(settings.queues.max(1));
        self.utilization.waiting.set_denominator(now, places);
        while self.queues.len() < settings.queues {
            self.queues.push(Queue::default());
        }
    }

    pub fn set_seats(&mut self, seats: usize) {
        self.seats = seats;
    }

    /// What counts as all of the level, where it is asked how much of it is in use.
    pub fn set_denominator(&mut self, now: Duration, seats: usize) {
        let Utilization { seats: occupied, executing, demand, .. } = &mut self.utilization;
        [occupied, executing, demand].into_iter().for_each(|histogram| histogram.set_denominator(now, seats));
    }

    pub fn utilization(&self) -> Utilization {
        self.utilization
    }

    pub fn last_dispatch(&self) -> Option<DispatchFigures> {
        self.last_dispatch
    }

    pub fn executing(&self) -> usize {
        self.executing
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn virtual_time(&self) -> f64 {
        self.virtual_time
    }

    pub fn active_queues(&self) -> usize {
        self.active_queues
    }

    /// What was needed since the last time: average, deviation, most.
    pub fn take_demand(&mut self, now: Duration) -> (f64, f64, f64) {
        self.demand.take(now.as_secs_f64())
    }

    /// Virtual time goes as fast as each active queue is served.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        if self.active_queues > 0 {
            let wanted = self.seats_in_use + self.seats_waiting;
            self.virtual_time += passed * wanted.min(self.seats) as f64 / self.active_queues as f64;
        }
    }

    fn note_demand(&mut self, now: Duration) {
        let demand = self.seats_in_use + self.seats_waiting;
        self.demand.set(now.as_secs_f64(), demand as f64);
        self.utilization.seats.set(now, self.seats_in_use);
        self.utilization.executing.set(now, self.executing);
        self.utilization.waiting.set(now, self.waiting);
        self.utilization.demand.set(now, demand);
    }

    fn fits(&self, width: Width) -> bool {
        let seats = width.max_seats();
        // One that is wider than everything is let in alone.
        if seats > self.seats {
            self.seats_in_use == 0 && self.seats > 0
        } else {
            self.seats_in_use + seats <= self.seats
        }
    }

    /// A request comes in: it is handled at once, waits, or is turned away. `make` is called for one that waits.
    pub fn arrive(&mut self, now: Duration, flow: u64, width: Width, make: impl FnOnce() -> W) -> Arrival {
        self.advance(now);
        self.next_id += 1;
        let id = self.next_id;
        if self.settings.queues == 0 {
            if !self.fits(width) {
                return Arrival::Rejected(Rejection::ConcurrencyLimit);
            }
            let ticket = Ticket { id, queue: None, width };
            self.occupy(ticket);
            self.note_demand(now);
            return Arrival::Dispatched(ticket);
        }
        let chosen = self.emptiest_of_hand(flow);
        let ticket = Ticket { id, queue: Some(chosen), width };
        if self.waiting == 0 && self.fits(width) {
            self.activate(chosen);
            self.queues[chosen].next_dispatch += width.work(ESTIMATED_SERVICE_SECONDS);
            self.occupy(ticket);
            self.note_demand(now);
            return Arrival::Dispatched(ticket);
        }
        if self.queues[chosen].waiting.len() >= self.settings.length_max {
            return Arrival::Rejected(Rejection::QueueFull);
        }
        self.activate(chosen);
        let queue = &mut self.queues[chosen];
        queue.waiting_work += width.work(ESTIMATED_SERVICE_SECONDS);
        queue.waiting.push_back(Waiting { id, width, arrived_at: now, waiter: make() });
        self.waiting += 1;
        self.seats_waiting += width.max_seats();
        self.note_demand(now);
        Arrival::Waiting(ticket)
    }

    /// A request that nothing limits.
    pub fn enter(&mut self, now: Duration, width: Width) -> Ticket {
        self.next_id += 1;
        let ticket = Ticket { id: self.next_id, queue: None, width: Width { final_seats: 0, ..width } };
        self.occupy(ticket);
        self.note_demand(now);
        ticket
    }

    /// A queue that was idle begins where everybody is: it has saved nothing up.
    fn activate(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if !queue.is_active() {
            queue.next_dispatch = queue.next_dispatch.max(self.virtual_time);
            self.active_queues += 1;
        }
    }

    fn occupy(&mut self, ticket: Ticket) {
        let seats = ticket.width.max_seats();
        if let Some(index) = ticket.queue {
            self.queues[index].executing += 1;
            self.queues[index].seats_in_use += seats;
        }
        self.executing += 1;
        self.seats_in_use += seats;
    }

    fn emptiest_of_hand(&self, flow: u64) -> usize {
        let load = |index: usize| {
            let queue = &self.queues[index];
            (queue.waiting_work, queue.seats_in_use)
        };
        let hand = deal(flow, self.settings.queues, self.settings.hand_size);
        let less = |a: &usize, b: &usize| load(*a).partial_cmp(&load(*b)).unwrap_or(std::cmp::Ordering::Equal);
        hand.into_iter().min_by(less).unwrap_or(0)
    }

    /// Gives free seats to those who wait, in turn; `wake` may say that a waiter is gone. The waiter whose turn it was, if
    /// there are too few seats for it.
    pub fn dispatch(&mut self, now: Duration, wake: impl FnMut(W, Duration) -> bool) -> Option<&W> {
        let stuck = self.dispatch_fitting(now, wake);
        self.note_demand(now);
        stuck.and_then(|index| self.queues[index].waiting.front()).map(|head| &head.waiter)
    }

    /// The queue whose turn it is, if its request does not fit.
    fn dispatch_fitting(&mut self, now: Duration, mut wake: impl FnMut(W, Duration) -> bool) -> Option<usize> {
        while self.waiting > 0 && self.seats_in_use < self.seats {
            let (index, figures) = self.next_queue()?;
            let head = self.queues[index].waiting.front()?;
            if !self.fits(head.width) {
                return Some(index);
            }
            self.robin = index;
            self.last_dispatch = Some(figures);
            let next = self.queues[index].waiting.pop_front()?;
            let work = next.width.work(ESTIMATED_SERVICE_SECONDS);
            self.queues[index].waiting_work -= work;
            self.queues[index].next_dispatch += work;
            self.waiting -= 1;
            self.seats_waiting -= next.width.max_seats();
            let ticket = Ticket { id: next.id, queue: Some(index), width: next.width };
            self.occupy(ticket);
            if !wake(next.waiter, now.saturating_sub(next.arrived_at)) {
                self.vacate(ticket, next.width.max_seats());
                self.queues[index].next_dispatch -= work;
                self.left(index);
            }
        }
        None
    }

    /// The one whose next request would be done first.
    fn next_queue(&self) -> Option<(usize, DispatchFigures)> {
        let count = self.queues.len();
        let mut best: Option<(f64, usize)> = None;
        let nothing = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut next, mut next_discounted) = (nothing, nothing);
        let widen = |range: &mut (f64, f64), value: f64| *range = (range.0.min(value), range.1.max(value));
        for step in 1..=count {
            let index = (self.robin + step) % count;
            let queue = &self.queues[index];
            let Some(head) = queue.waiting.front() else { continue };
            widen(&mut next, queue.next_dispatch);
            let under_way = queue.seats_in_use as f64 * ESTIMATED_SERVICE_SECONDS;
            widen(&mut next_discounted, queue.next_dispatch - under_way);
            let finish = queue.next_dispatch + head.width.work(ESTIMATED_SERVICE_SECONDS);
            if best.is_none_or(|(least, _)| finish < least) {
                best = Some((finish, index));
            }
        }
        let (_, index) = best?;
        let (virtual_time, latest) = (self.virtual_time, self.queues[index].next_dispatch);
        Some((index, DispatchFigures { virtual_time, latest, next, next_discounted }))
    }

    /// A request that had a seat is done after `took`. Says how long some of its seats stay taken.
    pub fn finish(&mut self, now: Duration, ticket: Ticket, took: Duration) -> Option<Duration> {
        self.advance(now);
        let width = ticket.width;
        if let Some(index) = ticket.queue {
            // It was charged for the estimate.
            let queue = &mut self.queues[index];
            queue.next_dispatch += width.work(took.as_secs_f64()) - width.work(ESTIMATED_SERVICE_SECONDS);
        }
        let lingers = width.final_seats > 0 && !width.additional.is_zero();
        match lingers {
            true => self.vacate_seats(ticket, width.max_seats() - width.final_seats),
            false => self.vacate(ticket, width.max_seats()),
        }
        if let Some(index) = ticket.queue {
            self.left(index);
        }
        self.note_demand(now);
        lingers.then_some(width.additional)
    }

    /// The seats that stayed taken after a request are free.
    pub fn release(&mut self, now: Duration, ticket: Ticket) {
        self.advance(now);
        self.vacate(ticket, ticket.width.final_seats);
        if let Some(index) = ticket.queue {
            self.left(index);
        }
        self.note_demand(now);
    }

    fn vacate_seats(&mut self, ticket: Ticket, seats: usize) {
        self.seats_in_use -= seats;
        if let Some(index) = ticket.queue {
            self.queues[index].seats_in_use -= seats;
        }
    }

    fn vacate(&mut self, ticket: Ticket, seats: usize) {
        self.vacate_seats(ticket, seats);
        self.executing -= 1;
        if let Some(index) = ticket.queue {
            self.queues[index].executing -= 1;
        }
    }

    fn left(&mut self, index: usize) {
        if !self.queues[index].is_active() {
            self.active_queues -= 1;
        }
    }

    /// Somebody no longer waits. False: it does not (any more).
    pub fn abandon(&mut self, now: Duration, ticket: Ticket) -> bool {
        let Some(index) = ticket.queue else { return false };
        let queue = &mut self.queues[index];
        let Some(place) = queue.waiting.iter().position(|waiting| waiting.id == ticket.id) else { return false };
        queue.waiting.remove(place);
        queue.waiting_work -= ticket.width.work(ESTIMATED_SERVICE_SECONDS);
        self.waiting -= 1;
        self.seats_waiting -= ticket.width.max_seats();
        self.left(index);
        self.note_demand(now);
        true
    }

    pub fn figures(&self) -> impl Iterator<Item = QueueFigures> {
        self.queues.iter().enumerate().map(|(index, queue)| QueueFigures {
            index,
            waiting: queue.waiting.len(),
            executing: queue.executing,
            seats_in_use: queue.seats_in_use,
            next_dispatch: queue.next_dispatch,
            initial_seats: queue.waiting.iter().map(|w| w.width.initial).sum(),
            max_seats: queue.waiting.iter().map(|w| w.width.max_seats()).sum(),
            work: queue.waiting_work,
        })
    }

    /// Every waiter with its queue and its place in it.
    pub fn waiters(&self) -> impl Iterator<Item = (usize, usize, &W, Width, Duration)> {
        self.queues.iter().enumerate().flat_map(|(index, queue)| {
            let numbered = queue.waiting.iter().enumerate();
            numbered.map(move |(place, w)| (index, place, &w.waiter, w.width, w.arrived_at))
        })
    }
}

/// `size` different cards of a deck, drawn by the digits of `hash`.
fn deal(mut hash: u64, deck: usize, size: usize) -> Vec<usize> {
    let mut drawn: Vec<usize> = Vec::with_capacity(size);
    let mut sorted: Vec<usize> = Vec::with_capacity(size);
    for taken in 0..size.min(deck) {
        let left = (deck - taken) as u64;
        let mut card = (hash % left) as usize;
        hash /= left;
        // The card-th of those that are left.
        for other in &sorted {
            if card >= *other {
                card += 1;
            }
        }
        let place = sorted.partition_point(|other| *other < card);
        sorted.insert(place, card);
        drawn.push(card);
    }
    drawn
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
