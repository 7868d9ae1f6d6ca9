package claude

import (
	"encoding/json"
	"path"
	"strings"
)

// exitPlan is the tool with which the model proposes its plan.
const exitPlan = "ExitPlanMode"

// planned records the model's plan from a tool call. The request for the user's decision does not contain it: older
// models pass the plan to ExitPlanMode, newer ones first write it to a file in the directory plans.
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
