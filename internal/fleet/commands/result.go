package commands

// Result is the result of a command.
type Result struct {
	ReturnCode  int     `json:"returncode"` // 128+n if a signal killed it, 124 after a time limit
	Stdout      string  `json:"stdout"`
	Stderr      string  `json:"stderr"`
	Duration    float64 `json:"duration_secs"`
	SandboxID   string  `json:"sandbox_id"`
	TimedOut    bool    `json:"timed_out"`
	Signal      string  `json:"signal,omitempty"` // "KILL", …
	OutOfMemory bool    `json:"out_of_memory,omitempty"`
	// Truncated means that output is missing: the middle of Stdout or Stderr, with a line in its place that says how
	// much, or output that the disk of the server did not return.
	Truncated bool `json:"truncated,omitempty"`
	// Reason is one sentence, set if the command's end was not caused by the command itself.
	Reason string `json:"reason,omitempty"`
	// Crashed describes processes of the command that died of a signal such as SIGSEGV that no process had sent.
	Crashed string `json:"crashed,omitempty"`
}

// Why returns the reason for the failure of a command if its output does not contain it: Reason, or Crashed.
func (r Result) Why() string {
	if r.Reason == "" && r.ReturnCode != 0 {
		return r.Crashed
	}
	return r.Reason
}
