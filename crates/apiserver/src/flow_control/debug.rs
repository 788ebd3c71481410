//! What is in the queues, for people: the pages below `/debug/api_priority_and_fairness/`.
//! Asked through `pipeline`; reads `flow_control`.
//! Changes nothing.

use std::sync::atomic::Ordering;

use super::FlowControl;

impl FlowControl {
    /// The page of that name as text; nothing if there is none.
    pub fn dump(&self, page: &str) -> Option<String> {
        match page {
            "dump_priority_levels" => Some(aligned(self.priority_levels())),
            "dump_queues" => Some(aligned(self.queues())),
            "dump_requests" => Some(aligned(self.requests())),
            _ => None,
        }
    }

    fn priority_levels(&self) -> Vec<Vec<String>> {
        let mut rows = header(&[
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ]);
        let stats = self.all_stats();
        for level in self.configuration().levels.values() {
            let own = || stats.iter().filter(|s| s.level == level.name);
            let rejected =
                |reasons: &[&str]| own().map(|s| reasons.iter().map(|r| s.rejected(r)).sum::<u64>()).sum::<u64>();
            let (active, waiting, executing) = level.figures();
            rows.push(vec![
                level.name.clone(),
                active.to_string(),
                (waiting + executing == 0).to_string(),
                "false".into(),
                waiting.to_string(),
                executing.to_string(),
                own().map(|s| s.dispatched.load(Ordering::Relaxed)).sum::<u64>().to_string(),
                rejected(&["queue-full", "concurrency-limit"]).to_string(),
                rejected(&["time-out"]).to_string(),
                rejected(&["cancelled"]).to_string(),
            ]);
        }
        rows
    }

    fn queues(&self) -> Vec<Vec<String>> {
        let mut rows = header(&[
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ]);
        for level in self.configuration().levels.values() {
            for queue in level.queue_figures() {
                rows.push(vec![
                    level.name.clone(),
                    queue.index.to_string(),
                    queue.waiting.to_string(),
                    queue.executing.to_string(),
                    queue.seats_in_use.to_string(),
                    format!("{:.8}ss", queue.next_dispatch),
                    queue.initial_seats.to_string(),
                    queue.max_seats.to_string(),
                    format!("{:.8}ss", queue.work.max(0.0)),
                ]);
            }
        }
        rows
    }

    fn requests(&self) -> Vec<Vec<String>> {
        let mut rows = header(&[
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ]);
        for level in self.configuration().levels.values() {
            rows.extend(level.waiters(&self.env));
        }
        rows
    }
}

fn header(names: &[&str]) -> Vec<Vec<String>> {
    vec![names.iter().map(|name| name.to_string()).collect()]
}

/// As Go's tabwriter does: commas, and columns at least eight wide.
fn aligned(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.len() + 2).max().unwrap_or(0).max(8);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            match column + 1 == row.len() {
                true => out.push_str(cell),
                false => out.push_str(&format!("{:1$}", format!("{cell},"), widths[column])),
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_string).to_vec();
        let found = aligned(vec![row(["PriorityLevelName", "A", "B"]), row(["exempt", "1", "two"])]);
        assert_eq!(found, "PriorityLevelName, A,      B\nexempt,            1,      two\n");
    }
}
