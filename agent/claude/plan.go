package claude

import (
	"encoding/json"
	"path"
	"strings"
)

// exitPlan is the tool by which the model proposes its plan.
const exitPlan = "ExitPlanMode"

// planned notes the model's plan as a tool call shows it. The request for the user's decision does not have it: older models give the plan to
// ExitPlanMode, newer ones write it into a file of the directory plans before.
func (c *conversation) planned(tool string, input json.RawMessage) {
	var in struct {
		Plan     string `json:"plan"`
		FilePath string `json:"file_path"`
		Content  string `json:"content"`
		Old      string `json:"old_string"`
		New      string `json:"new_string"`
		All      bool   `json:"replace_all"`
	}
	if json.Unmarshal(input, &in) != nil {
		return
	}
	ofPlan := path.Base(path.Dir(in.FilePath)) == "plans" && strings.HasSuffix(in.FilePath, ".md")
	switch {
	case tool == exitPlan && in.Plan != "":
		c.plan = in.Plan
	case tool == "Write" && ofPlan:
		c.plan = in.Content
	case tool == "Edit" && ofPlan && in.All:
		c.plan = strings.ReplaceAll(c.plan, in.Old, in.New)
	case tool == "Edit" && ofPlan:
		c.plan = strings.Replace(c.plan, in.Old, in.New, 1)
	}
}
