//! `det slot`: the slots of agents.

use std::collections::HashMap;

use clap::{Args, Subcommand};
use det_client::{Client, api_path};
use serde_json::{Value, json};

use crate::commands::{agents, tasks};
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, joined, last_part, members, number, plain, size, text};

/// Options of `det slot`.
#[derive(Debug, Args)]
pub(crate) struct SlotArgs {
    #[command(subcommand)]
    action: Option<SlotAction>,
}

#[derive(Debug, Subcommand)]
enum SlotAction {
    /// List slots (the default)
    #[command(visible_alias = "ls")]
    List(FormatArgs),
    /// Let a slot take tasks again
    Enable(SlotChoice),
    /// Keep tasks off a slot
    Disable(SlotChoice),
}

#[derive(Debug, Args)]
struct SlotChoice {
    /// Id of the agent
    agent_id: String,
    /// Id of the slot on that agent
    slot_id: String,
}

/// Carries out `det slot …`.
pub(crate) async fn run(args: SlotArgs, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    match args.action {
        None => list(&client, Format::Table).await,
        Some(SlotAction::List(format)) => list(&client, format.format()).await,
        Some(SlotAction::Enable(slot)) => change(&client, &slot, "enable", "Enabled").await,
        Some(SlotAction::Disable(slot)) => change(&client, &slot, "disable", "Disabled").await,
    }
}

async fn change(
    client: &Client,
    slot: &SlotChoice,
    action: &str,
    done: &str,
) -> Result<(), CliError> {
    let SlotChoice { agent_id, slot_id } = slot;
    client
        .post(
            &api_path(["agents", agent_id, "slots", slot_id, action]),
            None,
        )
        .await?;
    output::line(format_args!("{done} slot {slot_id} of agent {agent_id}"))
}

async fn list(client: &Client, format: Format) -> Result<(), CliError> {
    let columns = [
        ("agent_id", "Agent ID"),
        ("resource_pools", "Resource Pool"),
        ("slot_id", "Slot ID"),
        ("enabled", "Enabled"),
        ("draining", "Draining"),
        ("allocation_id", "Allocation ID"),
        ("task_name", "Task Name"),
        ("type", "Type"),
        ("device", "Device"),
        ("utilization", "Utilization"),
        ("memory", "Memory"),
        ("temperature", "Temperature"),
        ("fault", "Fault"),
    ];
    let tasks = tasks::all(client).await?;
    let by_container: HashMap<&str, &Value> = tasks
        .values()
        .flat_map(|task| items(&task["resources"]).map(move |resources| (resources, task)))
        .filter_map(|(resources, task)| Some((resources["containerId"].as_str()?, task)))
        .collect();
    let mut listing = Listing::new(columns.map(|(_, header)| header));
    let mut objects = Vec::new();
    for agent in agents::all(client).await? {
        let mut slots: Vec<&Value> = members(&agent["slots"]).map(|(_, slot)| slot).collect();
        // Slots are numbers written as text: 10 comes after 9.
        slots.sort_by_key(|slot| {
            let id = last_part(&text(slot, "id")).to_owned();
            (id.parse::<u64>().unwrap_or(u64::MAX), id)
        });
        for slot in slots {
            let (allocation, task) = occupant(&slot["container"], &by_container);
            let cells = [
                json!(last_part(&text(&agent, "id"))),
                json!(joined(&agent, "resourcePools")),
                json!(last_part(&text(slot, "id"))),
                slot["enabled"].clone(),
                slot["draining"].clone(),
                json!(allocation),
                json!(task),
                json!(device_type(&slot["device"])),
                slot["device"]["brand"].clone(),
                json!(utilization(&slot["usage"])),
                json!(memory(&slot["usage"])),
                json!(temperature(&slot["usage"])),
                slot["fault"].clone(),
            ];
            listing.push(cells.iter().map(plain));
            let mut object: serde_json::Map<_, _> = columns
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .zip(cells)
                .collect();
            // As tasks see it in CUDA_VISIBLE_DEVICES. It would be the widest column of the table.
            object.insert("uuid".to_owned(), slot["device"]["uuid"].clone());
            objects.push(object);
        }
    }
    listing.print(format, &objects)
}

/// The allocation on a slot and the name of its task.
fn occupant(container: &Value, by_container: &HashMap<&str, &Value>) -> (String, String) {
    if container.is_null() {
        return ("FREE".to_owned(), "FREE".to_owned());
    }
    if container["permissionDenied"] == true {
        return ("OCCUPIED".to_owned(), "NO PERMISSIONS".to_owned());
    }
    let id = text(container, "id");
    match by_container.get(id.as_str()) {
        Some(task) => (text(task, "allocationId"), text(task, "name")),
        None => ("OCCUPIED".to_owned(), format!("Non-Determined Task: {id}")),
    }
}

/// How much of the time a device is in use; nothing where its agent does not report it.
fn utilization(usage: &Value) -> String {
    match usage["utilizationPercent"].as_i64() {
        Some(percent) => format!("{percent}%"),
        None => String::new(),
    }
}

/// How much of a device's memory is in use; nothing where its agent does not report it.
fn memory(usage: &Value) -> String {
    match (
        number(&usage["memoryUsedBytes"]),
        number(&usage["memoryBytes"]),
    ) {
        (Some(used), Some(all)) => format!("{} of {}", size(used), size(all)),
        _ => String::new(),
    }
}

/// How warm a device is; nothing where its agent does not report it.
fn temperature(usage: &Value) -> String {
    match usage["celsius"].as_i64() {
        Some(celsius) => format!("{celsius}°C"),
        None => String::new(),
    }
}

fn device_type(device: &Value) -> &'static str {
    match device["type"].as_str() {
        Some("TYPE_CUDA") => "cuda",
        Some("TYPE_ROCM") => "rocm",
        Some("TYPE_CPU") => "cpu",
        _ => "unknown",
    }
}
