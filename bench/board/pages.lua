-- What people who look at a large run ask for, one after the other.
local paths = {
  "/api/runs", "/api/run?run=large", "/api/events?run=large",
  "/api/series?run=large&name=loss&name=lr&name=grad_norm&points=600",
  "/api/series?run=large&name=loss&points=600&from=20000&to=24000",
  "/api/ranks?run=large&name=time%2Ftotal&columns=160",
}
local at = 0

function request()
  at = at % #paths + 1
  return wrk.format("GET", paths[at])
end

function response(status)
  if status ~= 200 then print("status " .. status) end
end
