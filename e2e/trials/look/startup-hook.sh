export FROM_HOOK="set by the hook"
