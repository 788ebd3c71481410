//! Fair queues without a clock: the tests say what time it is.

use super::*;

const SETTINGS: QueueSettings = QueueSettings { queues: 16, hand_size: 4, length_max: 50 };
const MS: Duration = Duration::from_millis(1);

fn ticket(arrival: Arrival) -> Ticket {
    match arrival {
        Arrival::Dispatched(ticket) | Arrival::Waiting(ticket) => ticket,
        Arrival::Rejected(why) => panic!("{why:?}"),
    }
}

/// A hash for a flow whose hand shares no queue with another's.
fn apart(of: u64) -> u64 {
    let hand = deal(of, SETTINGS.queues, SETTINGS.hand_size);
    (1..).find(|h| deal(*h, SETTINGS.queues, SETTINGS.hand_size).iter().all(|card| !hand.contains(card))).unwrap()
}

#[test]
fn hands_hold_different_cards_of_the_whole_deck() {
    let mut seen = [0; 16];
    for hash in 0..20_000u64 {
        let hand = deal(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15), 16, 4);
        let mut sorted = hand.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 4, "{hand:?}");
        hand.iter().for_each(|card| seen[*card] += 1);
    }
    assert!(seen.iter().all(|count| (4000..6000).contains(count)), "{seen:?}");
    assert_eq!(deal(7, 2, 4).len(), 2);
}

#[test]
fn what_is_in_use_and_was_dispatched_is_known() {
    let mut set = QueueSet::new(SETTINGS, 2, Duration::ZERO);
    set.configure(Duration::ZERO, SETTINGS);
    set.set_denominator(Duration::ZERO, 2);
    let wide = Width { initial: 2, ..Width::ONE };
    let first = ticket(set.arrive(MS, 1, Width::ONE, || "a"));
    ticket(set.arrive(MS, 2, wide, || "b"));
    assert_eq!(set.last_dispatch(), None);
    let stuck = set.dispatch(MS, |_, _| true);
    assert_eq!(stuck, Some(&"b"), "one seat is free, it takes two");
    set.finish(3 * MS, first, 2 * MS);
    assert_eq!(set.dispatch(3 * MS, |_, _| true), None);
    let dispatched = set.last_dispatch().unwrap();
    assert_eq!(dispatched.next, (dispatched.latest, dispatched.latest));
    assert!(dispatched.virtual_time > 0.0);
    // For a millisecond nothing, for two one seat of two, then both.
    let (bounds, counts, sum) = set.utilization().seats.figures(4 * MS);
    let seen: Vec<_> = bounds.iter().zip(counts).filter(|(_, count)| *count > 0).collect();
    assert_eq!(seen, [(&0.0, 1_000_000), (&0.5, 2_000_000), (&1.0, 1_000_000)]);
    assert_eq!(sum, 2e6);
    let (.., demand) = set.utilization().demand.figures(4 * MS);
    assert_eq!(demand, 1.5 * 2e6 + 1e6);
}

#[test]
fn seats_are_taken_waited_for_and_given_on() {
    let mut set = QueueSet::new(SETTINGS, 2, Duration::ZERO);
    let first = set.arrive(Duration::ZERO, 1, Width::ONE, || "a");
    let second = ticket(set.arrive(Duration::ZERO, 2, Width::ONE, || "b"));
    assert!(matches!(first, Arrival::Dispatched(_)));
    let third = ticket(set.arrive(Duration::ZERO, 3, Width::ONE, || "c"));
    let fourth = ticket(set.arrive(MS, 4, Width::ONE, || "d"));
    assert_eq!((set.executing(), set.waiting(), set.seats_in_use), (2, 2, 2));
    let mut woken = Vec::new();
    assert_eq!(set.finish(2 * MS, ticket(first), 2 * MS), None);
    set.dispatch(2 * MS, |waiter, waited| {
        woken.push((waiter, waited));
        true
    });
    assert_eq!(woken, [("c", 2 * MS)]);
    assert!(set.abandon(3 * MS, fourth) && !set.abandon(3 * MS, fourth) && !set.abandon(3 * MS, third));
    set.finish(3 * MS, second, 3 * MS);
    set.finish(3 * MS, third, MS);
    assert_eq!((set.executing(), set.waiting(), set.seats_in_use, set.active_queues()), (0, 0, 0, 0));
    let (average, _, most) = set.take_demand(4 * MS);
    assert_eq!((most, average > 0.0), (4.0, true));
}

#[test]
fn wide_requests_take_what_they_weigh() {
    let mut set = QueueSet::new(SETTINGS, 4, Duration::ZERO);
    let wide = Width { initial: 3, ..Width::ONE };
    let first = ticket(set.arrive(Duration::ZERO, 1, wide, || 1));
    assert!(matches!(set.arrive(Duration::ZERO, 2, wide, || 2), Arrival::Waiting(_)));
    // One that would fit does not overtake those who wait.
    assert!(matches!(set.arrive(Duration::ZERO, 3, Width::ONE, || 3), Arrival::Waiting(_)));
    set.finish(MS, first, MS);
    let mut woken = Vec::new();
    set.dispatch(MS, |waiter, _| {
        woken.push(waiter);
        true
    });
    woken.sort();
    assert_eq!((woken, set.seats_in_use), (vec![2, 3], 4));
    // Wider than the level: alone.
    let mut narrow = QueueSet::new(SETTINGS, 2, Duration::ZERO);
    assert!(matches!(narrow.arrive(Duration::ZERO, 1, wide, || ()), Arrival::Dispatched(_)));
    assert!(matches!(narrow.arrive(Duration::ZERO, 2, Width::ONE, || ()), Arrival::Waiting(_)));
}

#[test]
fn seats_stay_taken_for_what_follows_from_a_write() {
    let mut set = QueueSet::<()>::new(SETTINGS, 4, Duration::ZERO);
    let width = Width { initial: 1, final_seats: 3, additional: 5 * MS };
    let write = ticket(set.arrive(Duration::ZERO, 1, width, || ()));
    assert_eq!(set.seats_in_use, 3);
    assert_eq!(set.finish(MS, write, MS), Some(5 * MS));
    assert_eq!((set.seats_in_use, set.executing()), (3, 1));
    set.release(6 * MS, write);
    assert_eq!((set.seats_in_use, set.executing(), set.active_queues()), (0, 0, 0));
}

#[test]
fn nobody_waits_without_queues_nor_in_full_ones() {
    let none = QueueSettings { queues: 0, hand_size: 0, length_max: 0 };
    let mut set = QueueSet::new(none, 1, Duration::ZERO);
    let first = ticket(set.arrive(Duration::ZERO, 1, Width::ONE, || ()));
    assert_eq!(set.arrive(Duration::ZERO, 1, Width::ONE, || ()), Arrival::Rejected(Rejection::ConcurrencyLimit));
    set.finish(MS, first, MS);
    assert!(matches!(set.arrive(MS, 1, Width::ONE, || ()), Arrival::Dispatched(_)));
    let short = QueueSettings { queues: 1, hand_size: 1, length_max: 2 };
    let mut set = QueueSet::new(short, 1, Duration::ZERO);
    for _ in 0..3 {
        ticket(set.arrive(Duration::ZERO, 1, Width::ONE, || ()));
    }
    assert_eq!(set.arrive(Duration::ZERO, 1, Width::ONE, || ()), Arrival::Rejected(Rejection::QueueFull));
}

#[test]
fn a_flood_does_not_delay_another_flow() {
    // Each request takes ten milliseconds of one of four seats; one flow keeps its queues full, another sends one request
    // at a time.
    let mut set = QueueSet::new(SETTINGS, 4, Duration::ZERO);
    let (flood, other) = (1, apart(1));
    let mut running: Vec<(Duration, Ticket)> = Vec::new();
    let mut tickets = std::collections::HashMap::new();
    let (mut served, mut rejected) = ([0, 0], 0);
    let (mut waits, mut other_busy) = (Vec::new(), false);
    for step in 0..5000u32 {
        let now = step * MS;
        let done: Vec<_> = running.iter().filter(|(end, _)| *end <= now).copied().collect();
        running.retain(|(end, _)| *end > now);
        for (_, ticket) in done {
            let (flow, _) = tickets[&ticket.id];
            served[flow] += 1;
            other_busy &= flow != 1;
            set.finish(now, ticket, 10 * MS);
        }
        let mut arrivals = vec![0, 0, 0, 0];
        if !other_busy {
            arrivals.push(1);
            other_busy = true;
        }
        for flow in arrivals {
            let hash = [flood, other][flow];
            let id = set.next_id + 1;
            match set.arrive(now, hash, Width::ONE, || id) {
                Arrival::Dispatched(ticket) => {
                    tickets.insert(ticket.id, (flow, ticket));
                    running.push((now + 10 * MS, ticket));
                }
                Arrival::Waiting(ticket) => drop(tickets.insert(ticket.id, (flow, ticket))),
                Arrival::Rejected(_) => {
                    assert_eq!(flow, 0, "the other flow is never turned away");
                    rejected += 1;
                }
            }
        }
        set.dispatch(now, |id, waited| {
            let (flow, ticket) = tickets[&id];
            running.push((now + 10 * MS, ticket));
            if flow == 1 {
                waits.push(waited);
            }
            true
        });
    }
    assert!(rejected > 10_000, "{rejected}: the flood is far beyond what can be served");
    assert!(served[0] + served[1] > 1900, "{served:?}: all seats are used");
    // Alone it would be served 500 times.
    assert!(served[1] > 220, "{served:?}");
    assert!(waits.iter().all(|waited| *waited <= 20 * MS), "{:?}", waits.iter().max());
}

#[test]
fn a_waiter_that_is_gone_gives_its_seat_on() {
    let mut set = QueueSet::new(SETTINGS, 1, Duration::ZERO);
    let first = ticket(set.arrive(Duration::ZERO, 1, Width::ONE, || "first"));
    set.arrive(Duration::ZERO, 2, Width::ONE, || "gone");
    set.arrive(Duration::ZERO, 3, Width::ONE, || "here");
    set.finish(MS, first, MS);
    let mut woken = Vec::new();
    set.dispatch(MS, |waiter, _| {
        woken.push(waiter);
        waiter == "here"
    });
    assert!(woken.contains(&"here"));
    assert_eq!((set.executing(), set.waiting()), (1, set.waiting()));
    assert_eq!(set.seats_in_use, 1);
}
