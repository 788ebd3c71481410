//! The search for devices: claim by claim, request by request, device by device, going back where that leads nowhere.
//! Reads `inventory` and `allocated`; what it finds becomes an allocation in `result`.
//! The first solution is taken. The devices of one request are taken in their order, so none is looked at in two orders.

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceAttribute};

use crate::{
    AllocatedDevices, AllocationError, ClaimRequests, DeviceId, Inventory, NodeView, RESULTS_MAX,
    inventory::{Pool, Slice, attribute, is_allocatable},
    request::{Alternative, Amount, MatchAttribute, Request, SelectorOf},
    result::{Found, allocation_result},
};

/// Whether time is over is asked every so many steps.
const STEPS_BETWEEN_QUESTIONS: u32 = 1024;

pub struct Allocator<'a> {
    pub inventory: &'a Inventory,
    pub allocated: &'a AllocatedDevices,
    pub is_over: &'a dyn Fn() -> bool,
}

impl Allocator<'_> {
    /// One allocation for each claim, or none for any.
    pub fn allocate(
        &self,
        node: NodeView<'_>,
        claims: &[ClaimRequests],
    ) -> Result<Vec<AllocationResult>, AllocationError> {
        let pools = self.inventory.pools_on(node);
        let mut search = Search::new(self, claims, &pools)?;
        if !search.place(0, 0)? {
            let any_invalid = pools.iter().any(|pool| pool.is_invalid);
            return Err(if any_invalid { AllocationError::InvalidPools } else { AllocationError::NoDevices });
        }
        search.results()
    }
}

struct Candidate<'a> {
    slice: &'a Slice,
    at: usize,
    id: &'a DeviceId,
    /// Has no other user and could have one.
    is_free: bool,
    is_allocatable: bool,
    /// In a pool that can be chosen from; of others only those are looked at that are asked for by name.
    is_offered: bool,
}

/// What is worked out once about an alternative.
struct Plan {
    /// Devices that it needs.
    count: usize,
    /// If it needs all: which these are.
    all: Option<Vec<usize>>,
    /// Which devices its selectors mean, as far as they were asked.
    selected: Vec<Option<bool>>,
}

#[derive(Default)]
struct ConstraintState<'a> {
    value: Option<&'a DeviceAttribute>,
    devices: usize,
}

/// Where the search is: an alternative of a request of a claim.
#[derive(Clone, Copy)]
struct Place {
    claim: usize,
    request: usize,
    alternative: usize,
}

struct Search<'a> {
    claims: &'a [ClaimRequests],
    devices: Vec<Candidate<'a>>,
    /// By claim, request and alternative.
    plans: Vec<Vec<Vec<Plan>>>,
    constraints: Vec<Vec<ConstraintState<'a>>>,
    chosen: Vec<Vec<usize>>,
    /// By claim: device, request and alternative.
    taken: Vec<Vec<(usize, usize, usize)>>,
    /// How many of the claims at hand have each device.
    users: Vec<u32>,
    steps: u32,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Search<'a> {
    fn new(
        allocator: &Allocator<'a>,
        claims: &'a [ClaimRequests],
        pools: &'a [Pool<'a>],
    ) -> Result<Self, AllocationError> {
        let mut devices = Vec::new();
        for pool in pools {
            for slice in &pool.slices {
                for (at, (id, device)) in slice.ids.iter().zip(slice.devices()).enumerate() {
                    devices.push(Candidate {
                        slice,
                        at,
                        id,
                        is_free: !allocator.allocated.contains(id),
                        is_allocatable: is_allocatable(device),
                        is_offered: !pool.is_incomplete && !pool.is_invalid,
                    });
                }
            }
        }
        let of_claims = |each: fn(&'a ClaimRequests) -> usize| claims.iter().map(each).collect::<Vec<_>>();
        let mut search = Self {
            claims,
            plans: Vec::new(),
            constraints: claims
                .iter()
                .map(|c| c.constraints.iter().map(|_| ConstraintState::default()).collect())
                .collect(),
            chosen: of_claims(|claim| claim.requests.len()).into_iter().map(|length| vec![0; length]).collect(),
            taken: claims.iter().map(|_| Vec::new()).collect(),
            users: vec![0; devices.len()],
            devices,
            steps: 0,
            is_over: allocator.is_over,
        };
        for claim in claims {
            let mut at_least = 0;
            let mut plans = Vec::new();
            for request in &claim.requests {
                let each = request.alternatives.iter().map(|alternative| search.plan(pools, claim, alternative));
                let each = each.collect::<Result<Vec<_>, _>>()?;
                at_least += each.iter().map(|plan| plan.count).min().unwrap_or(0);
                plans.push(each);
            }
            if at_least > RESULTS_MAX {
                let what = format!("number of requested devices {at_least} exceeds the claim limit of {RESULTS_MAX}");
                return Err(AllocationError::Broken(format!("claim {}: {what}", claim.key)));
            }
            search.plans.push(plans);
        }
        Ok(search)
    }

    fn plan(
        &self,
        pools: &[Pool<'_>],
        claim: &ClaimRequests,
        alternative: &Alternative,
    ) -> Result<Plan, AllocationError> {
        let unknown = vec![None; self.devices.len()];
        if let Amount::Exactly(count) = alternative.amount {
            return Ok(Plan { count, all: None, selected: unknown });
        }
        for pool in pools {
            let state = match (pool.is_incomplete, pool.is_invalid) {
                (true, _) => "being updated",
                (_, true) => "invalid",
                _ => continue,
            };
            let what = format!("asks for all devices, but resource pool {} is currently {state}", pool.id);
            let name = alternative.name.rsplit('/').next().unwrap_or_default();
            return Err(AllocationError::Broken(format!("claim {}, request {name}: {what}", claim.key)));
        }
        let mut all = Vec::new();
        for (at, device) in self.devices.iter().enumerate() {
            if self.selects(alternative, device)? {
                all.push(at);
            }
        }
        Ok(Plan { count: all.len(), all: Some(all), selected: unknown })
    }

    /// Finds devices for this request and all that follow.
    fn place(&mut self, claim: usize, request: usize) -> Result<bool, AllocationError> {
        let claims = self.claims;
        let Some(requests) = claims.get(claim) else { return Ok(true) };
        let Some(asked) = requests.requests.get(request) else { return self.place(claim + 1, 0) };
        for alternative in 0..asked.alternatives.len() {
            self.chosen[claim][request] = alternative;
            if self.fill(Place { claim, request, alternative }, 0, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds the devices of an alternative from number `had` on, none before position `from`; then what follows.
    fn fill(&mut self, place: Place, had: usize, from: usize) -> Result<bool, AllocationError> {
        self.step()?;
        let plan = &self.plans[place.claim][place.request][place.alternative];
        let (count, next) = (plan.count, plan.all.as_ref().map(|all| all.get(had).copied()));
        if next.is_some() && count == 0 {
            return Ok(false);
        }
        if had >= count {
            return self.place(place.claim, place.request + 1);
        }
        if self.taken[place.claim].len() + count - had > RESULTS_MAX {
            return Ok(false);
        }
        if let Some(Some(device)) = next {
            if !self.is_usable(place, device) {
                return Ok(false);
            }
            if !self.take(place, device) {
                let (request, alternative) = self.asked(place);
                let name = alternative.name.strip_prefix(&format!("{}/", request.name)).unwrap_or(&alternative.name);
                let what = format!(
                    "cannot add device {} because a claim constraint would not be satisfied",
                    self.devices[device].id
                );
                let key = &self.claims[place.claim].key;
                return Err(AllocationError::Broken(format!("claim {key}, request {name}: {what}")));
            }
            if self.fill(place, had + 1, 0)? {
                return Ok(true);
            }
            self.release(place, device);
            return Ok(false);
        }
        for device in from..self.devices.len() {
            if !self.devices[device].is_offered || !self.is_usable(place, device) || !self.is_selected(place, device)? {
                continue;
            }
            if !self.take(place, device) {
                continue;
            }
            if self.fill(place, had + 1, device + 1)? {
                return Ok(true);
            }
            self.release(place, device);
        }
        Ok(false)
    }

    fn step(&mut self) -> Result<(), AllocationError> {
        self.steps += 1;
        if self.steps >= STEPS_BETWEEN_QUESTIONS {
            self.steps = 0;
            if (self.is_over)() {
                return Err(AllocationError::TimedOut);
            }
        }
        Ok(())
    }

    fn asked(&self, place: Place) -> (&'a Request, &'a Alternative) {
        let request = &self.claims[place.claim].requests[place.request];
        (request, &request.alternatives[place.alternative])
    }

    /// Administrators share devices with everybody but themselves.
    fn is_usable(&self, place: Place, device: usize) -> bool {
        let candidate = &self.devices[device];
        let (_, alternative) = self.asked(place);
        candidate.is_allocatable
            && match alternative.admin_access {
                true => !self.taken[place.claim].iter().any(|(taken, ..)| *taken == device),
                false => candidate.is_free && self.users[device] == 0,
            }
    }

    fn is_selected(&mut self, place: Place, device: usize) -> Result<bool, AllocationError> {
        let (_, alternative) = self.asked(place);
        match self.plans[place.claim][place.request][place.alternative].selected[device] {
            Some(known) => Ok(known),
            None => {
                let found = self.selects(alternative, &self.devices[device])?;
                self.plans[place.claim][place.request][place.alternative].selected[device] = Some(found);
                Ok(found)
            }
        }
    }

    /// Whether all selectors of the class and of the request mean the device. Who writes a claim writes the expressions, and
    /// one of them may take longer than a thousand steps.
    fn selects(&self, alternative: &Alternative, device: &Candidate<'_>) -> Result<bool, AllocationError> {
        for SelectorOf { selector, label } in &alternative.selectors {
            if (self.is_over)() {
                return Err(AllocationError::TimedOut);
            }
            match device.slice.selects(selector, device.at) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(why) => return Err(AllocationError::Broken(format!("{label}: {why}"))),
            }
        }
        Ok(true)
    }

    /// Gives the device to the request, unless a constraint forbids it.
    fn take(&mut self, place: Place, device: usize) -> bool {
        let (request, alternative) = self.asked(place);
        let constraints = &self.claims[place.claim].constraints;
        for (at, constraint) in constraints.iter().enumerate() {
            let slice = self.devices[device].slice;
            if constraint.is_about(request, alternative)
                && !self.constraints[place.claim][at].add(constraint, slice, self.devices[device].at)
            {
                self.remove_from(&constraints[..at], place);
                return false;
            }
        }
        self.users[device] += 1;
        self.taken[place.claim].push((device, place.request, place.alternative));
        true
    }

    fn release(&mut self, place: Place, device: usize) {
        self.remove_from(&self.claims[place.claim].constraints, place);
        self.users[device] -= 1;
        self.taken[place.claim].pop();
    }

    fn remove_from(&mut self, constraints: &'a [MatchAttribute], place: Place) {
        let (request, alternative) = self.asked(place);
        for (constraint, state) in constraints.iter().zip(&mut self.constraints[place.claim]) {
            if constraint.is_about(request, alternative) {
                state.devices -= 1;
            }
        }
    }

    fn results(&self) -> Result<Vec<AllocationResult>, AllocationError> {
        let each = self.claims.iter().zip(&self.chosen).zip(&self.taken).map(|((claim, chosen), taken)| {
            let found = taken.iter().map(|(device, request, alternative)| Found {
                alternative: &claim.requests[*request].alternatives[*alternative],
                slice: self.devices[*device].slice,
                device: self.devices[*device].id,
            });
            allocation_result(claim, chosen, &found.collect::<Vec<_>>())
        });
        each.collect()
    }
}

impl<'a> ConstraintState<'a> {
    fn add(&mut self, constraint: &MatchAttribute, slice: &'a Slice, at: usize) -> bool {
        let attributes = slice.devices()[at].attributes.as_ref();
        let of_driver = constraint.attribute.split_once('/').filter(|(domain, _)| *domain == &*slice.pool.driver);
        let found = attributes
            .and_then(|attributes| attributes.get(&constraint.attribute).or_else(|| attributes.get(of_driver?.1)));
        let Some(value) = found.filter(|found| attribute(found).is_some()) else { return false };
        if self.devices == 0 {
            self.value = Some(value);
        } else if self.value.and_then(attribute) != attribute(value) {
            return false;
        }
        self.devices += 1;
        true
    }
}
