package modalapi

import (
	"strings"

	"github.com/RelevanceAI/harvest/account"
)

// The scopes of methods, by name. Every method that control and router implement has a row. A method whose
// effect a caller could notice later does not have the scope Read: QueueGet takes the items that it returns.
var (
	controlScopes = map[string]account.Scope{
		"AppClientDisconnect":           account.Write,
		"AppCountLogs":                  account.Read,
		"AppCreate":                     account.Write,
		"AppDeploymentHistory":          account.Read,
		"AppFetchLogs":                  account.Read,
		"AppGetByDeploymentName":        account.Read,
		"AppGetInfo":                    account.Read,
		"AppGetLayout":                  account.Read,
		"AppGetLifecycle":               account.Read,
		"AppGetLogs":                    account.Read,
		"AppGetOrCreate":                account.Write,
		"AppGetTags":                    account.Read,
		"AppHeartbeat":                  account.Write,
		"AppList":                       account.Read,
		"AppPublish":                    account.Write,
		"AppSetTags":                    account.Write,
		"AppStop":                       account.Write,
		"AuthTokenGet":                  account.Read,
		"ClientHello":                   account.Read,
		"ContainerFilesystemExec":       account.Exec,
		outputMethod:                    account.Exec,
		"ContainerStop":                 account.Write,
		"DictClear":                     account.Write,
		"DictContains":                  account.Read,
		"DictContents":                  account.Read,
		"DictDelete":                    account.Write,
		"DictGet":                       account.Read,
		"DictGetById":                   account.Read,
		"DictGetOrCreate":               account.Write,
		"DictHeartbeat":                 account.Write,
		"DictLen":                       account.Read,
		"DictList":                      account.Read,
		"DictPop":                       account.Write,
		"DictUpdate":                    account.Write,
		"EnvironmentCreate":             account.Write,
		"EnvironmentDelete":             account.Write,
		"EnvironmentGetOrCreate":        account.Write,
		"EnvironmentList":               account.Read,
		"EnvironmentUpdate":             account.Write,
		"ImageDelete":                   account.Write,
		"ImageFromId":                   account.Read,
		"ImageGetByTag":                 account.Read,
		"ImageGetOrCreate":              account.Write,
		"ImageJoinStreaming":            account.Read,
		"ImagePublish":                  account.Write,
		"ProxyCreate":                   account.Write,
		"ProxyGet":                      account.Read,
		"ProxyList":                     account.Read,
		"QueueClear":                    account.Write,
		"QueueDelete":                   account.Write,
		"QueueGet":                      account.Write,
		"QueueGetById":                  account.Read,
		"QueueGetOrCreate":              account.Write,
		"QueueHeartbeat":                account.Write,
		"QueueLen":                      account.Read,
		"QueueList":                     account.Read,
		"QueueNextItems":                account.Read,
		"QueuePut":                      account.Write,
		"SandboxContainerCreateV2":      account.Write,
		"SandboxCreate":                 account.Write,
		"SandboxCreateConnectToken":     account.Exec,
		"SandboxCreateConnectTokenV2":   account.Exec,
		"SandboxCreateV2":               account.Write,
		"SandboxGetCommandRouterAccess": account.Read,
		"SandboxGetExitSnapshot":        account.Read,
		"SandboxGetExitSnapshotV2":      account.Read,
		"SandboxGetFromName":            account.Read,
		"SandboxGetLogs":                account.Read,
		"SandboxGetFromNameV2":          account.Read,
		"SandboxGetTaskId":              account.Read,
		"SandboxGetTaskIdV2":            account.Read,
		"SandboxGetTunnels":             account.Read,
		"SandboxGetTunnelsV2":           account.Read,
		"SandboxList":                   account.Read,
		"SandboxListV2":                 account.Read,
		"SandboxRestore":                account.Write,
		"SandboxRestoreV2":              account.Write,
		"SandboxSetName":                account.Write,
		"SandboxSnapshot":               account.Write,
		"SandboxSnapshotGet":            account.Read,
		"SandboxSnapshotWait":           account.Read,
		"SandboxStdinWrite":             account.Exec,
		"SandboxTagsGet":                account.Read,
		"SandboxTagsGetV2":              account.Read,
		"SandboxTagsSet":                account.Write,
		"SandboxTagsSetV2":              account.Write,
		"SandboxTerminate":              account.Write,
		"SandboxTerminateV2":            account.Write,
		"SandboxWait":                   account.Read,
		"SandboxWaitUntilReady":         account.Read,
		"SandboxWaitV2":                 account.Read,
		"SecretDelete":                  account.Write,
		"SecretGetInfo":                 account.Read,
		"SecretGetOrCreate":             account.Write,
		"SecretList":                    account.Read,
		"SecretUpdate":                  account.Write,
		"TaskGetCommandRouterAccess":    account.Read,
		"TaskGetInfo":                   account.Read,
		"TaskList":                      account.Read,
		"TokenInfoGet":                  account.Read,
		"VolumeDelete":                  account.Write,
		"VolumeGetOrCreate":             account.Write,
		"VolumeHeartbeat":               account.Write,
		"VolumeList":                    account.Read,
		"WorkspaceNameLookup":           account.Read,
	}
	routerScopes = map[string]account.Scope{
		"SandboxStdinWriteV2":      account.Exec,
		"SandboxStdioReadV2":       account.Read,
		"SandboxWaitUntilReady":    account.Read,
		"TaskContainerCreate":      account.Write,
		"TaskContainerGet":         account.Read,
		"TaskContainerList":        account.Read,
		"TaskContainerTerminate":   account.Write,
		"TaskContainerWait":        account.Read,
		"TaskExecPoll":             account.Exec,
		"TaskExecStart":            account.Exec,
		"TaskExecStdinStatus":      account.Exec,
		"TaskExecStdinWrite":       account.Exec,
		"TaskExecStdinWriteStream": account.Exec,
		"TaskExecStdioRead":        account.Exec,
		"TaskExecWait":             account.Exec,
		"TaskMountDirectory":       account.Write,
		"TaskReloadVolumes":        account.Write,
		"TaskSetNetworkAccess":     account.Write,
		"TaskSnapshotDirectory":    account.Write,
		"TaskSnapshotFilesystem":   account.Write,
		"TaskSnapshotMemory":       account.Write,
		"TaskUnmountDirectory":     account.Write,
	}
)

// shortName returns the name of a method without its service.
func shortName(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// scopeOf returns the scope that a method requires. A method without a row does not exist here.
func scopeOf(method string) account.Scope {
	name := shortName(method)
	scopes := controlScopes
	if strings.HasPrefix(method, routerService) {
		scopes = routerScopes
	}
	if scope, ok := scopes[name]; ok {
		return scope
	}
	return account.Write
}
