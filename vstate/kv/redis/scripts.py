"""The Lua scripts of a Redis store. Each runs on the server as one step: no other client comes in between."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from vstate.kv.stored_keys import OBJECT_MARK

Command = tuple[Any, ...]
"""One command for the server: its name and its arguments."""

DIGITS = "0123456789abcdef"
KEYS_PER_EXCHANGE = 5000

DONE: Final = 1
OTHERWISE: Final = 0
BUSY: Final = -1
LOCK_LOST: Final = -2

Answer = Literal[1, 0, -1, -2]
"""The answers of WRITE: it is done; an expectation does not hold; another has the lock; our lock is gone. All
but the first wrote nothing."""


class Keys:
    """The keys on the server that belong to the store called `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        # Braces, so that a cluster has all of them on one node.
        self.base = f"{{{prefix}}}"
        self.objects = [f"{self.base}:o{digit}" for digit in DIGITS]
        self.values = f"{self.base}:v"
        self.index = f"{self.base}:k"
        self.lock = f"{self.base}:lock"
        self.waiting = f"{self.base}:waiting"
        self.rows = [*self.objects, self.values, self.index]
        """The keys of a script that reads or writes rows."""
        self.written = [*self.rows, f"{self.base}:done", self.lock, self.waiting]
        """The keys of WRITE."""
        self.channel = f"{self.base}:changes"

    def place(self, stored: bytes) -> tuple[str, bytes]:
        """The hash that holds the value of a stored key, and the field."""
        if stored[:1] == OBJECT_MARK:
            return self.objects[stored[1] >> 4], stored[1:]
        return self.values, stored


class Script:
    """A script. The server knows it by its hash once it has loaded it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: list[str], *arguments: Any) -> Command:
        return ("EVALSHA", self.name, len(keys), *keys, *arguments)


# The keys of every script that reads or writes rows: sixteen hashes of objects, by the first digit of the id;
# the hash of the other values; the index of their keys. The stored key of an object begins with the byte 255.
# All keys in rooms are among the others, an object with 245 bytes beside its value. With a hash for each room
# that were 95 bytes. But a write renews the time to live of the whole store, and a cluster wants the names of
# all keys of a script: a write would have to name every room.
_PLACE = """
local VALUES, INDEX = KEYS[17], KEYS[18]

local function place(stored)
    if string.byte(stored) == 255 then
        return KEYS[1 + math.floor(string.byte(stored, 2) / 16)], string.sub(stored, 2)
    end
    return VALUES, stored
end
"""

# Deletes come before sets. A server that is out of memory refuses a script whose first write needs some, and
# then nothing has happened. It lets a script go on that has begun by freeing some, and so gc can make room.
# Rows go many to a command: each command of a script goes to the server's log and to its replicas.
WRITE = Script(
    _PLACE
    + """
local DONE, LOCK, WAITING = KEYS[19], KEYS[20], KEYS[21]
local token, again, mine = ARGV[1], ARGV[2], ARGV[3]
local keep, ttl, channel = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local absent, equal = tonumber(ARGV[7]), tonumber(ARGV[8])
local deletes, sets = tonumber(ARGV[9]), tonumber(ARGV[10])
local at = 10

local function now()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function remember(sign)
    if token == '' then return end
    local time = now()
    redis.call('ZREMRANGEBYSCORE', DONE, '-inf', time)
    redis.call('ZADD', DONE, time + keep, token .. sign)
end

-- This may be the second try of a client that lost the answer to its first.
if token ~= '' then
    if redis.call('ZSCORE', DONE, token .. '+') then return 1 end
    if redis.call('ZSCORE', DONE, token .. '-') then return 0 end
end

if deletes + sets > 0 or mine ~= '' then
    local holder = redis.call('GET', LOCK)
    if mine ~= '' then
        if holder ~= mine then return -2 end
    elseif holder then
        -- Nobody gets the lock while a writer waits. Without memory this mark is refused, which does no harm.
        redis.pcall('SET', WAITING, '', 'PX', 60)
        return -1
    end
end

local function refuse()
    -- The first try may still be on its way through the network: it must not write after this answer.
    if again ~= '' then remember('-') end
    return 0
end

for _ = 1, absent do
    at = at + 1
    local hash, field = place(ARGV[at])
    if redis.call('HEXISTS', hash, field) == 1 then return refuse() end
end
for _ = 1, equal do
    local hash, field = place(ARGV[at + 1])
    if redis.call('HGET', hash, field) ~= ARGV[at + 2] then return refuse() end
    at = at + 2
end

local names, told = {}, {}
local rows = {}

local function flush(command)
    for hash, words in pairs(rows) do redis.call(command, hash, unpack(words)) end
    rows = {}
end

local function add(command, stored, value)
    local hash, field = place(stored)
    if hash == VALUES then
        names[#names + 1] = field
        -- Nobody listens to an object, whose stored key has this byte in a room.
        if string.byte(field, 10) ~= 255 then told[#told + 1] = field end
    end
    local words = rows[hash] or {}
    rows[hash] = words
    words[#words + 1] = field
    words[#words + 1] = value
    if #words >= 1000 then flush(command) end
end

local function index(command, from, score)
    for first = from, #names, 500 do
        local words = {}
        for at = first, math.min(first + 499, #names) do
            words[#words + 1] = score or names[at]
            if score then words[#words + 1] = names[at] end
        end
        redis.call(command, INDEX, unpack(words))
    end
end

for _ = 1, deletes do
    at = at + 1
    add('HDEL', ARGV[at])
end
flush('HDEL')
index('ZREM', 1)
local deleted = #names
for _ = 1, sets do
    add('HSET', ARGV[at + 1], ARGV[at + 2])
    at = at + 2
end
flush('HSET')
index('ZADD', deleted + 1, 0)
if deletes + sets > 0 then
    remember('+')
    local ends = ttl > 0 and now() + ttl  -- one moment, however slowly the server gets through this loop
    for number = 1, 19 do
        if ends then
            redis.call('PEXPIREAT', KEYS[number], ends)
        else
            redis.call('PERSIST', KEYS[number])
        end
    end
end
if mine ~= '' then redis.call('DEL', LOCK) end
if #told > 0 then
    local text = table.concat(told, '\\0')
    if #text > 65536 then text = '' end
    -- A user who may not publish may still write. Listeners then look from time to time.
    redis.pcall('PUBLISH', channel, text)
end
return 1
"""
)

# Arguments: stored keys. Answers a text of as many digits: 1 for a key that is present.
PRESENT = Script(
    _PLACE
    + """
local found = {}
for at, stored in ipairs(ARGV) do
    local hash, field = place(stored)
    found[at] = redis.call('HEXISTS', hash, field)
end
return table.concat(found)
"""
)

# Keys: a hash. Arguments: the cursor, the approximate number of fields, and the beginning of the wanted
# fields. Answers the id of the server's run, the next cursor, and the fields. A cursor means nothing to
# another run.
FIELDS = Script(
    """
local step = 1
local page = redis.pcall('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2], 'NOVALUES')
if page.err then
    -- Before Redis 7.4 the values come too, but they do not leave the server.
    step = 2
    page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
end
local fields = {}
for at = 1, #page[2], step do
    local field = page[2][at]
    if string.sub(field, 1, #ARGV[3]) == ARGV[3] then fields[#fields + 1] = field end
end
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
return {run, page[1], fields}
"""
)

# Keys: the lock, and the mark of waiting writers. Arguments: the holder, and the milliseconds to live.
LOCK = Script(
    """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 1
end
if holder or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
-- A server that is out of memory lets a script set a key once it has deleted one.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
)

# Keys: the lock. Arguments: the holder, and the milliseconds to live from now on; 0 releases the lock.
HOLD = Script(
    """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
)

# Answers the server's limit in bytes, and its policy beyond the limit. Two empty texts if it tells neither.
MEMORY = Script(
    """
local info = redis.pcall('INFO', 'memory')
if type(info) ~= 'string' then return {'', ''} end
return {string.match(info, 'maxmemory:(%d+)') or '', string.match(info, 'maxmemory_policy:([%w-]+)') or ''}
"""
)

ALL = (WRITE, PRESENT, FIELDS, LOCK, HOLD, MEMORY)
