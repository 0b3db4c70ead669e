-- Health of IcebergTopics, policies, TopicSets, TopicUsers and DeadLetterReplays for Argo CD (keys
-- resource.customizations.health.firn.dev_KIND of the ConfigMap argocd-cm).
-- Argo CD runs it in Lua 5.1 with `obj`, the live resource, and takes the table that it returns.

local function progressing(message)
  return { status = "Progressing", message = message }
end

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

local function message_of(kind)
  local message = conditions[kind].message
  if message == nil or message == "" then
    return conditions[kind].reason
  end
  return message
end

local function paused()
  return { status = "Suspended", message = message_of("Paused") }
end

if obj.metadata.deletionTimestamp ~= nil then
  if is_true("DeletionBlocked") then
    return progressing("Deletion is blocked: " .. message_of("DeletionBlocked"))
  end
  return progressing("Deleting")
end

local ready = conditions["Ready"]
if ready == nil then
  return progressing("Waiting for the operator")
end

-- A status of an older generation says nothing about the current spec.
local observed = ready.observedGeneration or status.observedGeneration
if observed ~= obj.metadata.generation then
  if is_true("Paused") then
    return paused()
  end
  return progressing("Waiting for the operator to look at this generation")
end

if is_true("Stalled") then
  return { status = "Degraded", message = message_of("Stalled") }
end
-- Ingestion stays stopped at this record until a user decides.
local ingestion = conditions["IngestionReady"]
if ingestion ~= nil and ingestion.status == "False" and ingestion.reason == "BadRecordHalt" then
  return { status = "Degraded", message = message_of("IngestionReady") }
end
if is_true("Paused") then
  return paused()
end
if ready.reason == "Suspended" then
  return { status = "Suspended", message = message_of("Ready") }
end
-- A policy with failing or overdue runs is Degraded. For a topic, the alerts of the chart report them.
local maintenance = conditions["MaintenanceHealthy"]
if obj.kind ~= "IcebergTopic" and maintenance ~= nil and maintenance.status == "False" then
  return { status = "Degraded", message = message_of("MaintenanceHealthy") }
end
if ready.status == "True" then
  return { status = "Healthy", message = message_of("Ready") }
end
return progressing(message_of("Ready"))
