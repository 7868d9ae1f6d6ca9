package editor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// record is what a thread needs after a restart of the editor, beside the session. Its file is named after the ID of
// the thread, which is that of its first session.
type record struct {
	Dir      string   `json:"dir"`            // of the editor
	Root     string   `json:"root,omitempty"` // of this machine, whose files the session has; "" for none
	Sessions []string `json:"sessions"`       // of Harvest, oldest first; the thread is in the last one
	Servers  []string `json:"mcp_servers,omitempty"`
	Prompted bool     `json:"prompted,omitempty"` // the last session had a prompt
	Work     string   `json:"work,omitempty"`     // state of the files that a session without a prompt has
	Changed  bool     `json:"changed,omitempty"`  // the settings are not those of the session
	Settings
}

// current returns the session of the thread.
func (r record) current() string {
	if len(r.Sessions) == 0 {
		return ""
	}
	return r.Sessions[len(r.Sessions)-1]
}

// validID reports whether an ID of the editor may be that of a session.
func validID(id string) bool {
	return strings.HasPrefix(id, "ses_") && len(id) < 100 && !strings.ContainsFunc(id, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

const recordEnd = ".json"

// write stores a record.
func (r record) write(dir, id string) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	path := filepath.Join(dir, id+recordEnd)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return errors.Wrapf(err, "write the record of %s", id)
}

// readRecord returns the record of a thread, if there is one.
func readRecord(dir, id string) (r record, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, id+recordEnd))
	return r, err == nil && json.Unmarshal(text, &r) == nil && len(r.Sessions) > 0
}

// readRecords returns all records by ID.
func readRecords(dir string) map[string]record {
	all := map[string]record{}
	entries, _ := os.ReadDir(dir) // without a directory, there are none
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), recordEnd)
		if !ok || !validID(id) {
			continue
		}
		if r, ok := readRecord(dir, id); ok {
			all[id] = r
		}
	}
	return all
}
