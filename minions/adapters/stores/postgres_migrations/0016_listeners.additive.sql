-- Until when somebody wants to be told of new entries of the session. All transactions that notify
-- commit one after the other, whatever their sessions are: so an append notifies only for listeners.
ALTER TABLE minions.leases ADD COLUMN listened_until timestamptz;
