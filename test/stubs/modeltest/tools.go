package modeltest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// shells are the tools of agents that run a command, and the field with the command.
var shells = []struct{ name, field string }{
	{"Bash", "command"}, {"bash", "command"}, {"run_shell_command", "command"}, {"exec_command", "cmd"},
	{"shell_command", "command"}, {"shell", "command"},
}

// call is a call of a tool.
type call struct {
	tool
	input map[string]any
	text  string // of a custom tool
}

// fit converts the tool of a step and its input to those of the requesting agent.
func fit(a asked, step Step) call {
	for _, t := range a.Tools {
		if t.Name == step.Call {
			return call{tool: t, input: step.Input}
		}
	}
	if t, ok := remote(a.Tools, step.Call); ok {
		return call{tool: t, input: step.Input}
	}
	if c, ok := script(a.Tools, step); ok {
		return c
	}
	if step.Call == "Bash" {
		if c, ok := shell(a.Tools, step.Input); ok {
			return c
		}
	}
	return openCode(step)
}

// script returns the call of a tool by JavaScript, which Codex has its newer models write.
func script(tools []tool, step Step) (call, bool) {
	name, input := step.Call, step.Input
	if name == "Bash" {
		name, input = "exec_command", map[string]any{"cmd": step.Input["command"]}
	}
	for _, t := range tools {
		if t.custom && t.Name == "exec" {
			given, _ := json.Marshal(input)
			return call{tool: t, text: fmt.Sprintf("const r = await tools.%s(%s); text(r);", name, given)}, true
		}
	}
	return call{}, false
}

// remote returns the tool of an MCP server, by its name in Claude Code.
func remote(tools []tool, name string) (tool, bool) {
	rest, ok := strings.CutPrefix(name, "mcp__")
	server, short, _ := strings.Cut(rest, "__")
	for _, t := range tools {
		whole := strings.Trim(t.namespace+"__"+t.Name, "_")
		if ok && (slices.Contains([]string{"mcp_" + server + "_" + short, server + "_" + short, rest}, t.Name) ||
			strings.ReplaceAll(whole, "____", "__") == name) {
			return t, true
		}
	}
	return tool{}, false
}

// shell returns the call that runs a command.
func shell(tools []tool, input map[string]any) (call, bool) {
	for _, known := range shells[1:] {
		for _, t := range tools {
			if t.Name != known.name {
				continue
			}
			changed := maps.Clone(input)
			delete(changed, "command")
			changed[known.field] = input["command"]
			if t.list {
				changed[known.field] = []any{"bash", "-lc", input["command"]}
			}
			maps.DeleteFunc(changed, func(field string, _ any) bool {
				return len(t.fields) > 0 && !slices.Contains(t.fields, field)
			})
			return call{tool: t, input: changed}, true
		}
	}
	return call{}, false
}

// openCode converts to OpenCode's names: lower-case tools, and camel-case fields.
func openCode(step Step) call {
	if step.Call == "AskUserQuestion" {
		return call{tool: tool{Name: "question"}, input: step.Input}
	}
	if rest, ok := strings.CutPrefix(step.Call, "mcp__"); ok {
		return call{tool: tool{Name: strings.Replace(rest, "__", "_", 1)}, input: step.Input}
	}
	input := map[string]any{}
	for key, value := range step.Input {
		parts := strings.Split(key, "_")
		for i := range parts[1:] {
			parts[i+1] = strings.ToUpper(parts[i+1][:1]) + parts[i+1][1:]
		}
		input[strings.Join(parts, "")] = value
	}
	return call{tool: tool{Name: strings.ToLower(step.Call)}, input: input}
}

// schema are the parts of the JSON schema of a tool's input.
type schema struct {
	Properties map[string]struct {
		Type any `json:"type"`
	} `json:"properties"`
}

// declared returns the tool with the fields of its input.
func declared(name, namespace string, s schema) tool {
	t := tool{Name: name, namespace: namespace, fields: slices.Sorted(maps.Keys(s.Properties))}
	t.list = s.Properties["command"].Type == "array"
	return t
}
