package sandbox

// Result is how a command ended (mission A1).
type Result struct {
	ReturnCode  int     `json:"returncode"` // 128+n when a signal ended it, 124 after a time limit
	Stdout      string  `json:"stdout"`
	Stderr      string  `json:"stderr"`
	Duration    float64 `json:"duration_secs"`
	SandboxID   string  `json:"sandbox_id"`
	TimedOut    bool    `json:"timed_out"`
	Signal      string  `json:"signal,omitempty"` // "KILL", …
	OutOfMemory bool    `json:"out_of_memory,omitempty"`
	Truncated   bool    `json:"truncated,omitempty"` // Stdout or Stderr lacks its middle; a line in it says how much
	Reason      string  `json:"reason,omitempty"`    // one sentence, when not the command itself was the cause of its end
	Crashed     string  `json:"crashed,omitempty"`   // processes of the command that a signal such as SIGSEGV ended, which nobody had sent
}

// Why returns the reason for the end of a command that failed, if it is not in the command's output: Reason, or Crashed.
func (r Result) Why() string {
	if r.Reason == "" && r.ReturnCode != 0 {
		return r.Crashed
	}
	return r.Reason
}
