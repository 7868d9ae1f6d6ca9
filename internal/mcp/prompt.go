package mcp

import (
	"context"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// sandboxPrompt is the text of the prompt work_in_sandbox.
const sandboxPrompt = `Do this task in a Harvest environment, not on this machine: do not run commands or change ` +
	`files here.

1. Call environment_create{NAME}. If the task belongs to the current repository, the environment has it with its ` +
	`uncommitted work.
2. Work with run, read, write, edit, list and search. Give each change an explanation that is a good commit message.
3. Run the tests. Take a snapshot before steps that are hard to undo.
4. When the work is done, call diff and check it, then hand_back, and tell me the branch and what changed.

The task: {TASK}`

func (s *server) addPrompts(to *sdk.Server) {
	to.AddPrompt(&sdk.Prompt{Name: "work_in_sandbox", Title: "Work in a sandbox",
		Description: "Do a task in an isolated environment, and hand the work back as a branch",
		Arguments: []*sdk.PromptArgument{
			{Name: "task", Description: "what to do", Required: true},
			{Name: "environment", Description: "name of the environment (default: chosen from the repository)"},
		}},
		func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			name := ""
			if given := req.Params.Arguments["environment"]; given != "" {
				name = " with the name " + given
			}
			text := strings.NewReplacer("{NAME}", name, "{TASK}", req.Params.Arguments["task"]).Replace(sandboxPrompt)
			return &sdk.GetPromptResult{Description: "Work in a sandbox", Messages: []*sdk.PromptMessage{
				{Role: "user", Content: &sdk.TextContent{Text: text}}}}, nil
		})
}
