-- Leases that were not given back are few, whatever was recorded: who resumes runs finds them here.
CREATE INDEX leases_not_given_back ON leases (deadline) WHERE deadline IS NOT NULL;
