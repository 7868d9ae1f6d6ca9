package sessions

import (
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// mcpRoutes returns the routes for the MCP servers of an agent.
func (s *Service) mcpRoutes() []edge.Route {
	return []edge.Route{
		{Method: "GET", Path: api.SessionMCP, Handle: s.listMCP, Scope: account.Read,
			Summary: "List the MCP servers of the agent with their states; empty while no agent runs",
			Out:     api.List[api.MCPServer]{}, Status: 200},
		{Method: "POST", Path: api.SessionMCPRestart, Handle: s.restartMCP, Scope: account.Exec,
			Summary: "Start an MCP server of the agent again; events report the result", Status: 204},
	}
}

func (s *Service) listMCP(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Sessions.MCPServers(r.Context(), edge.Account(r), r.PathValue("id"))
	out := api.List[api.MCPServer]{Data: []api.MCPServer{}}
	for _, m := range found {
		out.Data = append(out.Data, api.MCPServer(m))
	}
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, out)
}

func (s *Service) restartMCP(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.Sessions.RestartMCP(r.Context(), edge.Account(r), r.PathValue("id"),
		r.PathValue("name")))
}
