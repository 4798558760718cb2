//! Moving a job in the queue.

use det_scheduler::Policy;

use crate::cluster::Cluster;

impl Cluster {
    /// Moves a job next to another. Under the priority rule it takes that one's priority.
    ///
    /// # Errors
    /// A sentence when a job is unknown, or the policy knows no order.
    pub(crate) fn move_job(
        &mut self,
        policy: Policy,
        job: &str,
        anchor: &str,
        ahead: bool,
    ) -> Result<(), String> {
        for name in [job, anchor] {
            if !self.jobs.contains_key(name) {
                return Err(format!("there is no job \"{name}\""));
            }
        }
        if policy == Policy::FairShare {
            return Err(
                "jobs of a fair share pool have no order; change a weight instead".to_owned(),
            );
        }
        if job == anchor {
            return Ok(());
        }
        let priority = self.jobs[anchor].priority;
        if matches!(policy, Policy::Priority { .. })
            && let Some(moved) = self.jobs.get_mut(job)
        {
            moved.priority = priority;
        }
        // The order without the job, and where it goes.
        let by_priority = matches!(policy, Policy::Priority { .. });
        let mut others: Vec<String> = self
            .jobs
            .iter()
            .filter(|(name, other)| *name != job && (!by_priority || other.priority == priority))
            .map(|(name, _)| name.clone())
            .collect();
        others.sort_by_key(|name| self.place_of(name));
        let Some(at) = others.iter().position(|name| name == anchor) else {
            return Ok(());
        };
        let at = if ahead { at } else { at + 1 };
        let before = at
            .checked_sub(1)
            .map(|before| self.place_of(&others[before]).0);
        let after = others.get(at).map(|after| self.place_of(after).0);
        let position = match (before, after) {
            (Some(before), Some(after)) if after.saturating_sub(before) >= 2 => {
                before + (after - before) / 2
            }
            (Some(_), Some(after)) => {
                // No number lies between the two: all that are behind move back by a little.
                self.move_back(&others[at..]);
                after
            }
            (Some(before), None) => before.saturating_add(1),
            (None, Some(after)) => after.saturating_sub(1),
            (None, None) => return Ok(()),
        };
        if let Some(moved) = self.jobs.get_mut(job) {
            moved.position = Some(position);
        }
        Ok(())
    }

    fn place_of(&self, job: &str) -> (i64, i64) {
        self.jobs.get(job).map_or((0, 0), |job| {
            let position = job.position.unwrap_or(job.submitted_at);
            (position, job.submitted_at)
        })
    }

    /// Makes room before the first of these jobs, which come in order.
    fn move_back(&mut self, jobs: &[String]) {
        let mut free_from = None;
        for name in jobs {
            let (position, _) = self.place_of(name);
            let at_least = free_from.unwrap_or(position.saturating_add(2));
            if position >= at_least {
                return;
            }
            if let Some(job) = self.jobs.get_mut(name) {
                job.position = Some(at_least);
            }
            free_from = Some(at_least.saturating_add(1));
        }
    }
}
