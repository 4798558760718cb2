-- Faults of slots' devices, as their agent reported them: those that took a slot out of service, and those that users know.
ALTER TABLE agents ADD COLUMN slot_faults TEXT NOT NULL DEFAULT '{}';
