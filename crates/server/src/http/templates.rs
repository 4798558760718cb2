//! Templates of configurations.

use axum::extract::Path;
use det_api_types::page::Empty;
use det_api_types::templates::{
    GetTemplatesQuery, GetTemplatesResponse, PatchTemplateNameRequest, Template, TemplateResponse,
};
use det_api_types::wire::Object;

use crate::app::reads;
use crate::app::reads::templates::TemplateView;
use crate::app::templates::NewTemplate;
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_templates))
        .routes(routes!(
            get_template,
            post_template,
            put_template,
            patch_template_config,
            delete_template
        ))
        .routes(routes!(patch_template_name))
}

fn template(view: TemplateView) -> Template {
    Template {
        name: view.name,
        config: Object(view.config),
        workspace_id: view.workspace_id,
    }
}

fn answer(view: TemplateView) -> Answer {
    message(&TemplateResponse {
        template: template(view),
    })
}

/// What a body asks for; the name in the address counts.
fn new_template(name: String, body: Template) -> NewTemplate {
    NewTemplate {
        name,
        workspace_id: body.workspace_id.given(),
        config: body.config.0,
    }
}

/// Templates that match, by name. Of large ones a page has fewer than `limit`.
#[utoipa::path(get, path = "/api/v1/templates", operation_id = "GetTemplates", tag = "templates",
    params(GetTemplatesQuery), responses((status = 200, body = GetTemplatesResponse)))]
async fn get_templates(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetTemplatesQuery>,
) -> Answer {
    let (page, pagination) = reads::templates::page(&master.context.store, &actor, &query).await?;
    message(&GetTemplatesResponse {
        templates: page.into_iter().map(template).collect(),
        pagination,
    })
}

/// A template with the keys that it sets.
#[utoipa::path(get, path = "/api/v1/templates/{templateName}", operation_id = "GetTemplate", tag = "templates",
    params(("templateName" = String, Path, description = "the template's name")),
    responses((status = 200, body = TemplateResponse)))]
async fn get_template(Caller(master, actor): Caller, Path(name): Path<String>) -> Answer {
    answer(reads::templates::one(&master.context.store, &actor, &name).await?)
}

/// Adds a template. Its name must be free.
#[utoipa::path(post, path = "/api/v1/templates/{templateName}", operation_id = "PostTemplate", tag = "templates",
    params(("templateName" = String, Path, description = "the template's name")),
    request_body = Template, responses((status = 200, body = TemplateResponse)))]
async fn post_template(
    Caller(master, actor): Caller,
    Path(name): Path<String>,
    WireBody(body): WireBody<Template>,
) -> Answer {
    let new = new_template(name, body);
    answer(master.templates.create(&actor, new).await?)
}

/// Adds a template, or gives the one of this name another content.
#[utoipa::path(put, path = "/api/v1/templates/{templateName}", operation_id = "PutTemplate", tag = "templates",
    params(("templateName" = String, Path, description = "the template's name")),
    request_body = Template, responses((status = 200, body = TemplateResponse)))]
async fn put_template(
    Caller(master, actor): Caller,
    Path(name): Path<String>,
    WireBody(body): WireBody<Template>,
) -> Answer {
    let new = new_template(name, body);
    answer(master.templates.put(&actor, new).await?)
}

/// Gives a template another content. The body is the content itself.
#[utoipa::path(patch, path = "/api/v1/templates/{templateName}", operation_id = "PatchTemplateConfig", tag = "templates",
    params(("templateName" = String, Path, description = "the template's name")),
    request_body = Object, responses((status = 200, body = TemplateResponse)))]
async fn patch_template_config(
    Caller(master, actor): Caller,
    Path(name): Path<String>,
    WireBody(config): WireBody<Object>,
) -> Answer {
    answer(master.templates.change(&actor, name, config.0).await?)
}

/// Removes a template. What was made of it stays as it is. For its owner and administrators.
#[utoipa::path(delete, path = "/api/v1/templates/{templateName}", operation_id = "DeleteTemplate", tag = "templates",
    params(("templateName" = String, Path, description = "the template's name")),
    responses((status = 200, body = Empty)))]
async fn delete_template(Caller(master, actor): Caller, Path(name): Path<String>) -> Answer {
    master.templates.delete(&actor, name).await?;
    empty()
}

/// Gives a template another name, which must be free.
#[utoipa::path(patch, path = "/api/v1/template/rename", operation_id = "PatchTemplateName", tag = "templates",
    request_body = PatchTemplateNameRequest, responses((status = 200, body = TemplateResponse)))]
async fn patch_template_name(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PatchTemplateNameRequest>,
) -> Answer {
    let (from, to) = (body.old_name, body.new_name);
    answer(master.templates.rename(&actor, from, to).await?)
}
