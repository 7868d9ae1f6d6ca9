package modalapi

import "github.com/RelevanceAI/harvest/account"

// Scopes returns the tables of scopes.
func Scopes() (control, router map[string]account.Scope) { return controlScopes, routerScopes }
